"""An EngineCore on a tiny random model, and what an answer of it is for comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from backends.random_model import random_backend, random_spec
from octavo.cache.manager import KVCacheManager
from octavo.cache.policies.lru import LRU
from octavo.engine.core import EngineCore
from octavo.sampling.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.backends.base import Backend
    from octavo.cache.eviction import EvictionPolicy
    from octavo.engine.request import Request
    from octavo.model.spec import ModelSpec


def make_core(
    spec: ModelSpec | None = None,
    *,
    block_size: int = 16,
    num_blocks: int = 64,
    max_num_seqs: int = 8,
    budget: int = 256,
    max_model_len: int | None = None,
    caching: bool = True,
    eos: tuple[int, ...] = (),
    seed: int = 0,
    policy: type[EvictionPolicy] = LRU,
    wrap: Callable[[Backend], Backend] = lambda backend: backend,
) -> EngineCore:
    spec = spec or random_spec()
    capacity = min(spec.context_length, num_blocks * block_size)
    return EngineCore(
        wrap(random_backend(spec, num_blocks=num_blocks, block_size=block_size)),
        KVCacheManager(
            num_blocks,
            block_size,
            policy,
            enable_prefix_caching=caching,
            window=spec.cache_window,
        ),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(budget, max_num_seqs),
        max_model_len=max_model_len or capacity,
        eos_token_ids=frozenset(eos),
        seed=seed,
    )


def step(core: EngineCore, choices: dict[tuple[str, int], Request] | None = None) -> None:
    """Take one step; collect the choices it touched; check the accounts."""
    for request in core.step():
        if choices is not None:
            choices[request.request_id, request.choice] = request
    core.cache.check_invariants(core.scheduler.requests())


def run(
    core: EngineCore, between: Callable[[int], None] | None = None
) -> dict[tuple[str, int], Request]:
    """Step until nobody is left; return the choices by request id and index."""
    choices: dict[tuple[str, int], Request] = {}
    for number in range(5000):
        if not core.has_requests:
            break
        step(core, choices)
        if between is not None:
            between(number)
    assert not core.has_requests
    assert core.cache.num_available_blocks == core.cache.pool.num_blocks
    assert not core._draw_rows  # what has ended is forgotten
    return choices


def answer(core: EngineCore, prompt: list[int], **params: object) -> Request:
    """Serve one request alone."""
    request = core.add_request("only", prompt, SamplingParams(**params))
    run(core)
    return request


def numbers(request: Request) -> np.ndarray:
    """Return all logprobs of prompt and answer: the tokens' own, then the likeliest, per token."""
    entries = [e for e in (*request.prompt_logprobs, *request.output_logprobs) if e is not None]
    return np.array([[e.logprob, *e.top_logprobs] for e in entries])


def assert_same(request: Request, reference: Request) -> None:
    """Fail unless both have the same tokens, and all their logprobs agree within 1e-4."""
    assert request.output_token_ids == reference.output_token_ids
    assert request.finish_reason is reference.finish_reason
    ours, theirs = numbers(request), numbers(reference)
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < 1e-4
