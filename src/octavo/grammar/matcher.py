"""The state of a grammar in one answer: which tokens may come next, and whether it has ended.

It is a function of the grammar and the answer's tokens alone, so it outlives preemption as it is.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.grammar.vocabulary import llguidance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Matcher:
    """One answer's place in its grammar.

    ``mask`` has a bit a token, 1 where it may come next: bit i % 32 of word i // 32 is token i.
    It is None from the time a token is accepted until a `MaskFiller` has made the next one.
    """

    def __init__(self, state: Any, mask: NDArray[np.int32]) -> None:
        self._state = state
        self.mask: NDArray[np.int32] | None = mask
        self.num_accepted = 0
        """Tokens of the answer that it knows."""
        self.is_ended = bool(state.is_stopped())
        """Nothing may follow what was accepted, but an end token."""
        self.error: str | None = None
        """Why the answer cannot go on, though it has not ended; None as a rule."""

    def accept(self, token_id: int) -> None:
        """Take in the answer's next token."""
        self.mask = None
        self.num_accepted += 1
        self._state.consume_token(token_id)
        self._look()

    def follow(self, token_ids: Sequence[int]) -> None:
        """Take in what the answer has beyond what is known of it."""
        for token_id in token_ids[self.num_accepted :]:
            self.accept(token_id)

    def fork(self) -> Matcher:
        """Return a state of its own at the same place."""
        twin = Matcher.__new__(Matcher)
        twin._state, twin.mask, twin.num_accepted = (
            self._state.deep_copy(),
            self.mask,
            self.num_accepted,
        )
        twin.is_ended, twin.error = self.is_ended, self.error
        return twin

    def take_mask(self, mask: NDArray[np.int32]) -> None:
        """Know which tokens may come next; making the mask may have found that none can."""
        self.mask = mask
        self._look()

    def _look(self) -> None:
        state = self._state
        self.is_ended = bool(state.is_stopped())
        if self.is_ended and self.error is None and (state.is_error() or not state.is_accepting()):
            why = first_line(state.get_error()) or f"it cannot go on ({state.stop_reason()})"
            self.error = f"the answer's grammar failed: {why}"


class MaskFiller:
    """A thread that makes the masks of a step, all in one call that needs no interpreter lock."""

    def __init__(self, num_words: int) -> None:
        self._num_words = num_words
        self._executor = llguidance().LLExecutor(num_threads=1)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="octavo-masks")
        self._matchers: list[Matcher] = []
        self._masks: NDArray[np.int32] | None = None
        self._filling: Future[None] | None = None
