"""The state of a grammar in one answer: which tokens may come next, and whether it has ended.

It is a function of the grammar and the answer's tokens alone, so it outlives preemption as it is.
"""

from __future__ import annotations

import os
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

    def __init__(self, state: Any, mask: NDArray[np.int32], ends: NDArray[np.int32]) -> None:
        self.state = state
        """llguidance's."""
        self.mask: NDArray[np.int32] | None = None
        self._ends = ends
        self.num_accepted = 0
        """Tokens of the answer that it knows."""
        self.is_ended = False
        """Nothing may follow what was accepted, but an end token."""
        self.must_end = False
        """The mask has end tokens only."""
        self.error: str | None = None
        """Why the answer cannot go on, though it has not ended; None as a rule."""
        self.take_mask(mask)

    @property
    def num_words(self) -> int:
        """How many words a mask has."""
        return len(self._ends)

    def accept(self, token_id: int) -> None:
        """Take in the answer's next token."""
        self.mask = None
        self.num_accepted += 1
        self.state.consume_token(token_id)
        self._look()

    def follow(self, token_ids: Sequence[int]) -> None:
        """Take in what the answer has beyond what is known of it."""
        for token_id in token_ids[self.num_accepted :]:
            self.accept(token_id)

    def fork(self) -> Matcher:
        """Return a state of its own at the same place, whose mask is known."""
        assert self.mask is not None
        twin = Matcher(self.state.deep_copy(), self.mask, self._ends)
        twin.num_accepted = self.num_accepted
        return twin

    def take_mask(self, mask: NDArray[np.int32]) -> None:
        """Know which tokens may come next; making the mask may have found that none can."""
        self.mask = mask
        self._look()
        self.must_end = self.is_ended or (
            bool(self.state.is_accepting()) and not (mask & ~self._ends).any()
        )

    def _look(self) -> None:
        state = self.state
        self.is_ended = bool(state.is_stopped())
        if self.is_ended and state.is_error():
            self.error = f"the answer's grammar cannot go on: {told(state.get_error())}"


class MaskFiller:
    """A thread that makes the masks of a step, all in one call that needs no interpreter lock.

    `start` and `join` are one thread's, and nobody may use a matcher between them.
    """

    def __init__(self, num_words: int) -> None:
        self._num_words = num_words
        self._pid = os.getpid()
        self._executor = llguidance().LLExecutor(num_threads=1)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="octavo-masks")
        self._filling: tuple[list[Matcher], NDArray[np.int32], Future[None]] | None = None

    @property
    def is_alive(self) -> bool:
        """Whether its threads are in this process: a forked child has none of them."""
        return self._pid == os.getpid()

    def start(self, matchers: list[Matcher]) -> None:
        """Begin to make the masks of these."""
        assert self._filling is None, "join comes before the next start"
        masks = np.empty((len(matchers), self._num_words), np.int32)
        self._filling = matchers, masks, self._worker.submit(self._fill, matchers, masks)

    def join(self) -> None:
        """Wait until they are made; every matcher of the start has its mask, or an error."""
        if self._filling is None:
            return
        matchers, masks, done = self._filling
        self._filling = None
        done.result()
        for matcher, mask in zip(matchers, masks, strict=True):
            matcher.take_mask(mask)

    def close(self) -> None:
        """End the thread."""
        self._worker.shutdown(wait=False)

    def _fill(self, matchers: list[Matcher], masks: NDArray[np.int32]) -> None:
        self._executor.unsafe_compute_mask_ptr(
            [(matcher.state, i) for i, matcher in enumerate(matchers)],
            masks.ctypes.data,
            4 * self._num_words,
            len(matchers),
        )


def told(text: str) -> str:
    """Return a message of llguidance's in one line, without the state that it may add."""
    text = text.split("<non-verbose/>")[0].split("<state>")[0]
    return " / ".join(line.strip() for line in text.splitlines() if line.strip())
