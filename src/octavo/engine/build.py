"""Put an engine together from a config: model, backend, cache, core. The only place that does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from octavo.backends.reference import ReferenceBackend
from octavo.cache.manager import KVCacheManager
from octavo.cache.policies import find_policy
from octavo.engine.core import EngineCore
from octavo.engine.memory import available_memory
from octavo.errors import ConfigError
from octavo.model.loader import Model, load_model

if TYPE_CHECKING:
    from octavo.backends.base import Backend
    from octavo.config import EngineConfig, ResolvedConfig
    from octavo.sampling.sampler import RowArithmetic

BACKENDS = ("cpu", "reference")


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine, the model it serves, and what was decided for it."""

    model: Model
    core: EngineCore
    resolved: ResolvedConfig


def build_engine(config: EngineConfig) -> Engine:
    """Load the model and build the engine that ``config`` describes.

    Raises `ConfigError` for what cannot be honoured and `ModelError` for what cannot be loaded.
    """
    if config.backend not in BACKENDS:
        raise ConfigError(
            f"backend is {config.backend!r}; known are {', '.join(BACKENDS)}", param="backend"
        )
    if config.backend == "cpu" and config.kv_dtype != "float16":
        raise ConfigError(
            f"kv_cache_dtype is {config.kv_cache_dtype!r}; the cpu backend stores float16 "
            "(the reference backend takes float32 too)",
            param="kv_cache_dtype",
        )
    if config.backend != "cpu" and config.quantization is not None:
        raise ConfigError(
            f"quantization is {config.quantization!r}; the {config.backend} backend computes with "
            "the file's own weights (the cpu backend rounds them)",
            param="quantization",
        )
    policy = find_policy(config.eviction_policy)
    model = load_model(config.model)
    dtype = np.dtype(config.kv_dtype)
    weights = _weight_bytes(config, model)
    resolved = config.resolve(
        context_length=model.spec.context_length,
        kv_bytes_per_token=model.spec.kv_bytes_per_token(dtype.itemsize),
        available_bytes=max(0, available_memory() - weights),
    )
    backend = _make_backend(config, model, resolved)
    cache = KVCacheManager(
        resolved.num_kv_blocks,
        config.block_size,
        policy,
        enable_prefix_caching=config.enable_prefix_caching,
        model=_cache_identity(model, resolved),
        window=model.spec.cache_window,
    )
    core = EngineCore(
        backend,
        cache,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=resolved.max_model_len,
        eos_token_ids=model.tokenizer.eos_ids,
        static=config.scheduling_policy == "static",
        seed=config.seed,
        arithmetic=_row_arithmetic(backend),
    )
    return Engine(model, core, resolved)


def _cache_identity(model: Model, resolved: ResolvedConfig) -> bytes:
    """Return whatever makes other keys and values out of the same tokens."""
    config = resolved.config
    parts = [model.fingerprint, config.backend.encode(), config.kv_dtype.encode()]
    if config.quantization is not None:
        parts.append(config.quantization.encode())
    choice = model.spec.rope_choice_for(resolved.max_model_len)
    if choice is not None:
        parts.append(choice.encode())
    return b"/".join(parts)


def _make_backend(config: EngineConfig, model: Model, resolved: ResolvedConfig) -> Backend:
    spec = model.spec.for_context(resolved.max_model_len)
    if config.backend == "cpu":
        from octavo.backends.cpu.backend import CpuBackend

        backend = CpuBackend(
            spec,
            model.tensors,
            num_blocks=resolved.num_kv_blocks,
            block_size=config.block_size,
            num_threads=config.num_threads,
            quantization=config.quantization,
        )
        # Here, not in the first step: what compiles for half a minute is no request's time.
        backend.prepare()
        return backend
    return ReferenceBackend(
        spec,
        model.tensors,
        num_blocks=resolved.num_kv_blocks,
        block_size=config.block_size,
        kv_dtype=np.dtype(config.kv_dtype),
        num_threads=config.num_threads,
    )


def _row_arithmetic(backend: Backend) -> RowArithmetic | None:
    """Return the backend's own kernels for sampling; None is NumPy's."""
    if isinstance(backend, ReferenceBackend):
        return None
    from octavo.backends.cpu.backend import CpuBackend
    from octavo.backends.cpu.rows import CpuRows

    return CpuRows(backend) if isinstance(backend, CpuBackend) else None


def _weight_bytes(config: EngineConfig, model: Model) -> int:
    """Return about what the backend's own copy of the weights takes."""
    tensors = model.tensors.values()
    if config.backend == "cpu":  # packed: at most 1.8 times the file's (Q2_K), as a rule the same
        return sum(tensor.num_bytes for tensor in tensors)
    return 4 * sum(tensor.num_elements for tensor in tensors)
