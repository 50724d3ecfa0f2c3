"""The grammar of every choice in an engine, and the masks of the next step, made beside it.

A choice's state is a function of its grammar and its tokens: a fork replays, preemption changes
nothing. Knows no text and no tensors of a model. Without a grammar it does nothing at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.grammar.matcher import MaskFiller

if TYPE_CHECKING:
    from collections.abc import Iterable

    from octavo.engine.request import Request
    from octavo.grammar.matcher import Matcher


class Masks:
    """The matchers of the requests that have a grammar, for the engine's thread.

    From `start`, when a step's tokens are known, to `join`, before the next are drawn, a thread of
    its own makes the masks.
    """

    def __init__(self) -> None:
        self._matchers: dict[Request, Matcher] = {}
        self._filler: MaskFiller | None = None

    def matcher(self, request: Request) -> Matcher:
        """Return the state of a request's grammar, its tokens taken in. `join` comes before."""
        assert request.grammar is not None
        matcher = self._matchers.get(request)
        if matcher is None:
            matcher = self._matchers[request] = request.grammar.begin()
        matcher.follow(request.output_token_ids)
        return matcher

    def start(self, requests: Iterable[Request]) -> None:
        """Begin to make the masks of these requests' next tokens, where they have a grammar."""
        matchers = [
            self.matcher(request)
            for request in requests
            if request.grammar is not None and not request.is_finished
        ]
        matchers = [matcher for matcher in matchers if matcher.mask is None and not matcher.error]
        if not matchers:
            return
        if self._filler is None or not self._filler.is_alive:
            self._filler = MaskFiller(matchers[0].num_words)
        self._filler.start(matchers)

    def join(self) -> None:
        """Wait for the masks that were begun."""
        if self._filler is not None:
            self._filler.join()

    def drop(self, request: Request) -> None:
        """Forget a request that has ended."""
        self._matchers.pop(request, None)
