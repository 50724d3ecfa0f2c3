"""The equalities on the user's own model and machine: the same request, the same bits.

Requests run alone, whole, on one thread; then again in every circumstance that must not matter,
and every token and every logprob is compared by `==`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from octavo.backends.cpu.backend import CpuBackend, usable_cores
from octavo.backends.cpu.rows import CpuRows
from octavo.cache.manager import KVCacheManager
from octavo.cache.policies import find_policy
from octavo.engine.core import EngineCore
from octavo.evaluate.paths import digests, other_paths
from octavo.evaluate.paths import run as run_path
from octavo.grammar.compile import GrammarCompiler
from octavo.sampling.params import SamplingParams
from octavo.sampling.structured import StructuredOutputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from octavo.engine.request import Request
    from octavo.evaluate.paths import InstructionPath
    from octavo.model.loader import Model
    from octavo.sampling.logits import TokenLogprobs

_TEXTS: Final = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea, there lived a fisherman who",
    "Water boils at a lower temperature on a mountain because",
)
_PREFIX: Final = (
    "A library is a place where books are kept and read. It has shelves, tables, lamps and a "
    "quiet that visitors notice first. Some come for novels, some for newspapers, and some only "
    "for the warmth in winter. The librarian knows where everything stands, and says so softly. "
)
_MANY, _FEW = 40, 12  # tokens that a short and a long prompt's answer has
_POOL: Final = 64  # blocks
_SHAPE: Final = StructuredOutputs(json={"type": "array", "minItems": 1000})
"""Of some requests, where llguidance is installed; no answer comes to its end."""

Answer = tuple[tuple[int, ...], "tuple[TokenLogprobs | None, ...]"]


@dataclass(frozen=True, slots=True)
class Check:
    """One equality, tried."""

    number: int
    name: str
    passed: bool | None
    """None: not checked."""
    detail: str
    seconds: float


class Selftest:
    """Runs the checks one after another; ``say`` is told what takes long.

    With ``paths`` every other instruction path of this machine is tried, each in a process of its
    own that compiles for half a minute the first time.
    """

    def __init__(
        self,
        model: Model,
        *,
        num_threads: int | None = None,
        paths: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._model = model
        self._paths = paths
        self._say = say
        self._num_threads = num_threads or usable_cores()
        self._backends: dict[int, CpuBackend] = {}
        encode = model.tokenizer.encode_prompt
        self._prompts = [encode(text) for text in _TEXTS] + [
            encode(_PREFIX + text) for text in _TEXTS
        ]
        self._alone: list[Answer] = []
        self._has_grammars = find_spec("llguidance") is not None
        self._grammars = GrammarCompiler(model.tokenizer, model.spec.vocab_size)

    def checks(self) -> Iterator[Check]:
        """Try every equality that a build of this version promises."""
        begin = time.monotonic()
        for i in range(len(self._prompts)):
            self._alone += self._run([i], threads=1, prefix=False)[0]
        yield Check(
            0, "alone, one thread", True, f"{len(self._alone)} requests", time.monotonic() - begin
        )
        everything = range(len(self._prompts))
        yield self._check(1, "batched, any order", list(reversed(everything)))
        yield self._check(2, "prefilled in chunks of 7", everything, budget=7, seqs=4)
        yield self._check(3, "prefix found in the cache", everything, twice=True)
        short = range(len(_TEXTS))
        blocks = _small_pool([self._prompts[i] for i in short])
        yield self._check(4, "preempted and resumed", short, blocks=blocks)
        for threads in sorted({2, 3, self._num_threads} - {1}):
            yield self._check(6, f"on {threads} threads", everything, threads=threads)
        for path in other_paths():
            yield self._check_path(path)

    def together(self) -> list[Answer]:
        """Return what every request gives, all of them batched on all threads."""
        return self._run(range(len(self._prompts)), threads=self._num_threads)[0]

    def _check_path(self, path: InstructionPath) -> Check:
        if not self._paths:
            return Check(6, path.name, None, "--paths checks it", 0.0)
        if self._say is not None:
            self._say(
                f"computing {path.name}, in a process of its own; its first time compiles for "
                "half a minute"
            )
        begin = time.monotonic()
        found = run_path(path, str(self._model.path), self._num_threads)
        if isinstance(found, int):
            passed, detail = False, f"the process ended with {found}"
        else:
            expected = digests(self._alone)
            wrong = sum(got != wanted for got, wanted in zip(found, expected, strict=True))
            passed, detail = not wrong, f"{len(found)} requests"
            if wrong:
                detail = f"{wrong} of {len(found)} requests differ"
        return Check(6, path.name, passed, detail, time.monotonic() - begin)

    def _check(
        self,
        number: int,
        name: str,
        order: Sequence[int],
        *,
        threads: int | None = None,
        twice: bool = False,
        budget: int = 512,
        seqs: int = 16,
        blocks: int = _POOL,
    ) -> Check:
        begin = time.monotonic()
        answers, core = self._run(
            [*order, *order] if twice else order,
            threads=self._num_threads if threads is None else threads,
            budget=budget,
            seqs=1 if twice else seqs,
            limit=blocks,
        )
        expected = [self._alone[i] for i in order] * (2 if twice else 1)
        wrong = sum(got != wanted for got, wanted in zip(answers, expected, strict=True))
        happened, detail = True, f"{len(answers)} requests, {core.num_steps} steps"
        if number == 3:
            hits = core.cache.stats.prefix_hits
            happened, detail = hits > 0, f"{hits} tokens were found"
        if number == 4:
            happened = core.scheduler.num_preemptions > 0
            detail = f"{core.scheduler.num_preemptions} preemptions"
        if wrong:
            detail = f"{wrong} of {len(answers)} requests differ"
        elif not happened:
            detail += ": it did not come to that"
        return Check(number, name, not wrong and happened, detail, time.monotonic() - begin)

    def _run(
        self,
        order: Sequence[int],
        *,
        threads: int,
        prefix: bool = True,
        budget: int = 512,
        seqs: int = 16,
        limit: int = _POOL,
    ) -> tuple[list[Answer], EngineCore]:
        """Run requests; return what each gave, in order, and the engine."""
        backend = self._backend(threads)
        cache = KVCacheManager(
            _POOL, backend.block_size, find_policy("lru"), enable_prefix_caching=prefix
        )
        # A smaller pool is the same pool with blocks that nobody gives back.
        cache.pool.allocate(_POOL - limit)
        core = EngineCore(
            backend,
            cache,
            max_num_seqs=seqs,
            max_num_batched_tokens=max(budget, seqs),
            max_model_len=min(limit * backend.block_size, self._model.spec.context_length),
            arithmetic=CpuRows(backend),
        )
        requests: list[Request] = []
        for i in order:
            params = SamplingParams(
                max_tokens=_MANY if i < len(_TEXTS) else _FEW,
                temperature=0.0 if i % 2 else 0.8,
                top_p=0.95,
                seed=i,
                logprobs=2,
                ignore_eos=True,
                structured_outputs=_SHAPE if i % 4 == 2 and self._has_grammars else None,
            )
            grammar = None if params.shape is None else self._grammars.compile(params.shape)
            requests.append(
                core.add_request(str(len(requests)), self._prompts[i], params, grammar=grammar)
            )
        while core.has_requests:
            core.step()
        answers = [(tuple(r.output_token_ids), tuple(r.output_logprobs)) for r in requests]
        return answers, core

    def _backend(self, threads: int) -> CpuBackend:
        if threads not in self._backends:
            for other in self._backends.values():
                other.close()
            self._backends.clear()  # one copy of the weights at a time
            self._backends[threads] = CpuBackend(
                self._model.spec,
                self._model.tensors,
                num_blocks=_POOL,
                num_threads=threads,
                say=self._say,
            )
        return self._backends[threads]


def _small_pool(prompts: Sequence[Sequence[int]]) -> int:
    """Return the blocks of a pool that holds all prompts, or one whole request, and no more."""
    one = max(len(prompt) for prompt in prompts) + _MANY
    return max(-(-one // 16), sum(-(-len(prompt) // 16) for prompt in prompts))
