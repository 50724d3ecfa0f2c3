"""Requests of exact lengths through an engine, every step's time sorted by what it was spent on.

A step that computes any prompt token is *prefill*, every other one *decode*. What a step did is
counted between the steps: the engine's time has no part in that.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from octavo.bench.counts import ModelWork, Work
from octavo.engine.outputs import OutputProcessor
from octavo.errors import ConfigError
from octavo.sampling.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.backends.cpu.backend import CpuBackend
    from octavo.backends.cpu.counters import Counters
    from octavo.engine.llm import LLM
    from octavo.engine.request import Request


@dataclass(slots=True)
class Part:
    """All steps of one kind."""

    num_steps: int = 0
    num_tokens: int = 0
    """Prompt tokens that prefill computed; tokens that decode made."""
    seconds: float = 0.0
    work: Work = field(default_factory=Work)
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds by the part of a step; together they are ``seconds``."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds by the phase of the forward pass; together ``parts["forward"]``. Empty if unknown."""
    compiled_seconds: float = 0.0
    """In the compiled forward pass and the compiled choice of tokens."""

    @property
    def tokens_per_second(self) -> float | None:
        """None where there was no such step."""
        return self.num_tokens / self.seconds if self.num_steps else None

    @property
    def engine_overhead(self) -> float | None:
        """The share of the time outside the compiled code; None where none is."""
        return 1 - self.compiled_seconds / self.seconds if self.compiled_seconds else None

    def shares(self) -> dict[str, float]:
        """Return each part's share of the time."""
        return {name: seconds / self.seconds for name, seconds in self.parts.items()}

    def phase_shares(self) -> dict[str, float]:
        """Return each phase's share of the whole time, not of the forward pass alone."""
        return {name: seconds / self.seconds for name, seconds in self.phases.items()}


@dataclass(slots=True)
class Measured:
    """What some runs took, and on what."""

    seconds: float = 0.0
    """From the first request's arrival to the last token; the bench's own counting is in it."""
    prefill: Part = field(default_factory=Part)
    decode: Part = field(default_factory=Part)


class Bench:
    """Sends requests through an engine that serves nobody else.

    ``n`` choices a prompt; they end by their length only, so they are as long as asked. Raises
    `ConfigError` for lengths that no request may have.
    """

    def __init__(
        self, llm: LLM, *, input_len: int, output_len: int, n: int = 1, temperature: float = 1.0,
        seed: int = 0, detokenize: bool = True,
    ) -> None:  # fmt: skip
        self._core = llm.core
        if input_len + output_len > llm.core.max_model_len:
            raise ConfigError(
                f"input_len={input_len} and output_len={output_len} make "
                f"{input_len + output_len} tokens, and a request may have at most "
                f"{llm.core.max_model_len}: shorten one, or raise max_model_len or kv_cache_memory",
                param="input_len",
            )
        self._input_len = input_len
        self._params = SamplingParams(
            n=n, temperature=temperature, max_tokens=output_len, ignore_eos=True
        )
        self._processor = OutputProcessor(llm.tokenizer, llm.core.finish) if detokenize else None
        self._rng = np.random.default_rng(seed)
        self.backend = cpu_backend(llm)
        """The engine's, if it is the one whose work is counted."""
        self._work = None if self.backend is None else ModelWork(self.backend)
        self._ticks_per_second = 0.0
        self._num_requests = 0
        self._computed: dict[Request, int] = {}

    def prompts(self, count: int) -> list[list[int]]:
        """Return random prompts, others each time."""
        shape = (count, self._input_len)
        vocab_size = self._core.backend.spec.vocab_size
        ids: list[list[int]] = self._rng.integers(0, vocab_size, shape).tolist()
        return ids

    def run(
        self,
        prompts: list[list[int]],
        measured: Measured,
        done: Callable[[int], None] = lambda _: None,
    ) -> float:
        """Answer all prompts, add what it took to ``measured``; return the seconds.

        ``done`` is told how many answers each step has ended.
        """
        begin = time.perf_counter()
        for prompt in prompts:
            self._add(prompt)
        while self._core.has_requests:
            parts, counters = self._parts(), self._counters()
            step_begin = time.perf_counter()
            touched = self._core.step()
            if self._processor is not None:
                self._processor.process(touched)
            seconds = time.perf_counter() - step_begin
            part = self._count_work(touched, measured)
            self._count_time(part, seconds, parts, counters)
            if ended := sum(request.is_finished for request in touched):
                done(ended)
        seconds = time.perf_counter() - begin
        measured.seconds += seconds
        return seconds

    def _add(self, prompt: list[int]) -> None:
        name = f"bench-{self._num_requests}"
        self._num_requests += 1
        request = self._core.add_request(name, prompt, self._params)
        self._computed[request] = 0
        if self._processor is not None:
            self._processor.add(request)

    def _count_work(self, touched: list[Request], measured: Measured) -> Part:
        """Add what a step did to prefill or decode; return which."""
        forked = [request for request in touched if request not in self._computed]
        for request in forked:  # the prompt was another choice's work
            self._computed[request] = request.num_prompt_tokens
        sequences, num_prompt_tokens = [], 0
        for request, before in self._computed.items():
            now = request.num_computed_tokens
            if now > before:
                sequences.append((now - before, now))
                num_prompt_tokens += max(0, min(now, request.num_prompt_tokens) - before)
            self._computed[request] = now
        part = measured.prefill if num_prompt_tokens else measured.decode
        part.num_steps += 1
        part.num_tokens += num_prompt_tokens or len(touched)
        if self._work is not None:
            part.work.add(self._work.step(sequences, len(touched) - len(forked)))
        for request in touched:
            if request.is_finished:
                self._computed.pop(request, None)
        return part

    def _count_time(
        self, part: Part, seconds: float, before: dict[str, float], counters: Counters | None
    ) -> None:
        part.seconds += seconds
        parts = {name: value - before[name] for name, value in self._parts().items()}
        parts["other"] = seconds - sum(parts.values())
        _add_up(part.parts, parts)
        now = self._counters()
        if now is None or counters is None:
            return
        spent = now - counters
        inside = self._share_inside(spent)
        part.compiled_seconds += inside * spent.forward_seconds + spent.sampling_seconds
        found = spent.phase_seconds()
        phases = {name: inside * phase.work for name, phase in found.items()}
        phases["waiting"] = inside * sum(phase.waiting for phase in found.values())
        phases["in_and_out"] = parts["forward"] - sum(phases.values())
        _add_up(part.phases, phases)

    def _share_inside(self, spent: Counters) -> float:
        """Return how much of the seconds of calling the compiled step passed inside it.

        A call takes its time before the first tick and after the last, a larger part of a short
        step. How many ticks a second has is told by the step that had most of them: there the call
        took the least part.
        """
        ticks = int(spent.ticks.sum())
        if not ticks:  # no counter
            return 1.0
        rate = ticks / spent.forward_seconds
        self._ticks_per_second = max(self._ticks_per_second, rate)
        return rate / self._ticks_per_second

    def _parts(self) -> dict[str, float]:
        """Return the engine's running sums by the part of a step."""
        detokenise = 0.0 if self._processor is None else self._processor.seconds
        return {**asdict(self._core.seconds), "detokenise": detokenise}

    def _counters(self) -> Counters | None:
        return None if self.backend is None else self.backend.counters()


def _add_up(sums: dict[str, float], more: dict[str, float]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0.0) + value


def cpu_backend(llm: LLM) -> CpuBackend | None:
    """Return the engine's backend if it is the compiled one."""
    from octavo.backends.cpu.backend import CpuBackend

    backend = llm.core.backend
    return backend if isinstance(backend, CpuBackend) else None
