"""The experiment: every policy at every capacity over one trace, beside the bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from octavo.cache.policies import BOUNDS
from octavo.errors import TraceError
from octavo.simulate.optimal import min_hits
from octavo.simulate.plain import PlainCache
from octavo.simulate.replay import EngineReplay, InfiniteReplay, PlainReplay, ReplayCounts
from octavo.simulate.trace import KeyTrace, LengthTrace, PromptTrace

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from octavo.cache.eviction import EvictionPolicy
    from octavo.simulate.replay import Replay
    from octavo.simulate.trace import Trace

    Progress = Callable[[int], None]
    """Told how many more requests, or keys, have been replayed."""

RULES = ("engine", "forward", "reverse")
MAX_REFERENCES_FOR_MIN = 20_000_000
"""MIN holds the whole trace and its future in memory: about 100 bytes a reference."""
MIN, INFINITE = BOUNDS
_STRIDE = 256  # requests between two reports of progress


@dataclass(frozen=True, slots=True)
class Result:
    """One replay, or one bound."""

    trace: str
    policy: str
    """A policy's name, `MIN` or `INFINITE`."""
    capacity: int | None
    """In blocks; None where it does not matter."""
    rules: str
    """``keys`` for a trace of bare keys, else one of `RULES`; ``bound`` for a bound."""
    counts: ReplayCounts
    mix: str = ""
    """In which order the requests came, where the file leaves that open."""

    @property
    def hit_rate(self) -> float:
        """Hits by references."""
        return self.counts.hits / max(1, self.counts.references)

    @property
    def token_hit_rate(self) -> float | None:
        """Tokens found by tokens asked for; None where tokens were not counted."""
        counts = self.counts
        return counts.token_hits / counts.tokens if counts.tokens else None

    def record(self) -> dict[str, Any]:
        """Return the result as one flat object, for JSON and CSV."""
        counts = self.counts
        return {
            "trace": self.trace,
            "policy": self.policy,
            "capacity": self.capacity,
            "references": counts.references,
            "hits": counts.hits,
            "hit_rate": _rounded(self.hit_rate),
            "tokens": counts.tokens or None,
            "token_hits": counts.token_hits if counts.tokens else None,
            "token_hit_rate": _rounded(self.token_hit_rate),
            "evictions": None if self.policy in (MIN, INFINITE) else counts.evictions,
            "requests": counts.requests or None,
            "refused": counts.refused if counts.requests else None,
            "let_go_early": counts.let_go_early if counts.requests else None,
            "rules": self.rules,
            "mix": self.mix or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What to try on each trace."""

    policies: Sequence[type[EvictionPolicy]]
    capacities: Sequence[int]
    concurrency: int = 1
    rules: str = "engine"
    with_bounds: bool = True
    progress: Progress = field(default=lambda _: None)

    def num_steps(self, trace: Trace) -> int:
        """Return how many requests, or keys, will be replayed in all."""
        length = len(trace.requests) if isinstance(trace, PromptTrace | LengthTrace) else 1
        if isinstance(trace, KeyTrace):
            length = len(trace.keys)
        return length * len(self.policies) * len(self.capacities)

    def run(self, trace: Trace) -> list[Result]:
        """Return a result for each capacity and policy, each capacity's MIN, then the infinite."""
        replayable = check_replayable(trace)
        if isinstance(replayable, KeyTrace):
            return list(self._run_keys(replayable))
        return list(self._run_prompts(replayable))

    def _run_keys(self, trace: KeyTrace) -> Iterator[Result]:
        keys, name = trace.keys, trace.name
        for capacity in self.capacities:
            for policy in self.policies:
                counts = self._replay_keys(keys, PlainCache(capacity, policy))
                yield Result(name, policy.name, capacity, "keys", counts)
            if self.with_bounds and len(keys) <= MAX_REFERENCES_FOR_MIN:
                counts = ReplayCounts(references=len(keys), hits=min_hits(keys, capacity))
                yield Result(name, MIN, capacity, "bound", counts)
        if self.with_bounds:
            counts = ReplayCounts(references=len(keys), hits=len(keys) - len(set(keys)))
            yield Result(name, INFINITE, None, "bound", counts)

    def _replay_keys(self, keys: Sequence[int], cache: PlainCache) -> ReplayCounts:
        counts = ReplayCounts(references=len(keys))
        rest = iter(keys)
        while chunk := list(islice(rest, 100 * _STRIDE)):
            counts.hits += cache.replay(chunk)
            self.progress(len(chunk))
        counts.evictions = cache.num_evictions
        return counts

    def _run_prompts(self, trace: PromptTrace) -> Iterator[Result]:
        bounds = self._bounds(trace) if self.with_bounds else None
        for capacity in self.capacities:
            for policy in self.policies:
                counts = self._replay(trace, self._cache(trace, capacity, policy))
                yield Result(trace.name, policy.name, capacity, self.rules, counts, trace.mix)
            if bounds is not None and bounds.keys is not None:
                counts = ReplayCounts(references=bounds.infinite.references)
                counts.hits = min_hits(bounds.keys, capacity, may_bypass=True)
                yield Result(trace.name, MIN, capacity, "bound", counts, trace.mix)
        if bounds is not None:
            yield Result(trace.name, INFINITE, None, "bound", bounds.infinite, trace.mix)

    def _cache(self, trace: PromptTrace, capacity: int, policy: type[EvictionPolicy]) -> Replay:
        size = trace.block_size
        if self.rules == "engine":
            return EngineReplay(capacity, policy, block_size=size, concurrency=self.concurrency)
        return PlainReplay(capacity, policy, block_size=size, reverse=self.rules == "reverse")

    def _replay(self, trace: PromptTrace, replay: Replay) -> ReplayCounts:
        admit = replay.admit
        due = 0
        for request in trace.requests:
            admit(request)
            due += 1
            if due == _STRIDE:
                self.progress(due)
                due = 0
        self.progress(due)
        return replay.counts

    @staticmethod
    def _bounds(trace: PromptTrace) -> _Bounds:
        infinite = InfiniteReplay(block_size=trace.block_size)
        for request in trace.requests:
            infinite.admit(request)
        keys: list[Hashable] | None = None
        if infinite.counts.references <= MAX_REFERENCES_FOR_MIN:
            keys = list(chain.from_iterable(request.blocks for request in trace.requests))
        return _Bounds(infinite.counts, keys)


def check_replayable(trace: Trace) -> KeyTrace | PromptTrace:
    """Return ``trace``; raise `TraceError` if there is nothing in it that a cache could hold."""
    if isinstance(trace, LengthTrace):
        raise TraceError(
            f"{trace.name} has lengths only, so nothing in it can be found in a cache; it is "
            "of use for generating load, not for 'octavo simulate'"
        )
    return trace


@dataclass(frozen=True, slots=True)
class _Bounds:
    """What the bounds of a trace are computed from."""

    infinite: ReplayCounts
    keys: list[Hashable] | None
    """All references, one after another; None where they are too many for MIN."""


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 6)
