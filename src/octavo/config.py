"""EngineConfig: every setting of the engine, checked once, and resolved once for a model.

The field names are the keyword arguments of `LLM` and, with dashes, the flags of every command.
Knows no model file and no backend: `resolve` is told the few numbers that it needs.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import ConfigError, shown

DEFAULT_MODEL = "smollm2"
MAX_BLOCK_SIZE = 1 << 16
MAX_THREADS = 1024
MOST_AUTOMATIC_KV_BYTES = 4 << 30
"""The pool takes no more than this unless asked to: 4 GiB."""

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_KV_DTYPES = {"auto": "float16", "float16": "float16", "float32": "float32"}


def _setting(default: Any, help_text: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": help_text, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The settings of an engine, as a user gives them; None means automatic.

    Raises `ConfigError` (a ``ValueError``) for a value out of range, naming the field and limit.
    """

    model: str = _setting(
        DEFAULT_MODEL, "A known model's name, hf:org/repo, or the path of a .gguf file or a folder."
    )
    backend: str = _setting(
        "cpu", "Who computes: cpu (compiled kernels), or reference (plain NumPy, slow)."
    )
    quantization: str | None = _setting(
        None,
        "int8: 16-bit and 32-bit weights are rounded to 8 bits (cpu backend); those that the file "
        "has quantised stay as they are. [default: none is rounded]",
    )
    num_threads: int | None = _setting(None, "Threads for the arithmetic. [default: all cores]")
    block_size: int = _setting(16, "Tokens a block of the KV cache holds.")
    num_kv_blocks: int | None = _setting(
        None, "Blocks in the KV cache; overrides --kv-cache-memory. [default: from free memory]"
    )
    kv_cache_memory: int | str | None = _setting(
        None, "Memory for the KV cache, such as 2GiB. [default: from free memory]"
    )
    kv_cache_dtype: str = _setting("auto", "How keys and values are stored: float16, float32.")
    max_model_len: int | None = _setting(
        None, "Most tokens of a request, prompt and answer. [default: the model's context]"
    )
    max_num_seqs: int = _setting(64, "Most requests computed in one step.")
    max_num_batched_tokens: int = _setting(512, "Most tokens computed in one step.")
    enable_prefix_caching: bool = _setting(True, "Share the blocks of equal prefixes.")
    eviction_policy: str = _setting(
        "arc",
        "Who dies when the KV cache is full: arc, fifo, lfu, lru, s3fifo, slru, module:Class.",
    )
    scheduling_policy: str = _setting(
        "continuous", "continuous, or static: no request joins a batch that has begun."
    )
    seed: int = _setting(0, "What the seeds of requests without one are derived from.")

    def __post_init__(self) -> None:
        """Check every field that can be checked without a model."""
        _check_int("block_size", self.block_size, 1, MAX_BLOCK_SIZE)
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            _check_int(name, getattr(self, name), 1)
        for name in ("num_kv_blocks", "max_model_len"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), 1)
        if self.num_threads is not None:
            _check_int("num_threads", self.num_threads, 1, MAX_THREADS)
        _check_int("seed", self.seed, -(2**63), 2**64 - 1)  # as the seed of a request
        if not isinstance(self.enable_prefix_caching, bool):
            raise _refused("enable_prefix_caching", self.enable_prefix_caching, "true or false")
        if not isinstance(self.model, str) or not self.model:
            raise _refused("model", self.model, "a name or a path")
        if not isinstance(self.eviction_policy, str):  # which ones there are, the cache knows
            raise _refused("eviction_policy", self.eviction_policy, "a policy's name")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is less than "
                f"max_num_seqs={self.max_num_seqs}; every running request is owed one token a "
                "step: raise the former or lower the latter",
                param="max_num_batched_tokens",
            )
        _check_choice("kv_cache_dtype", self.kv_cache_dtype, _KV_DTYPES)
        if self.quantization is not None:
            _check_choice("quantization", self.quantization, ("int8",))
        _check_choice("scheduling_policy", self.scheduling_policy, ("continuous", "static"))
        if self.kv_cache_memory is not None:
            parse_bytes(self.kv_cache_memory, "kv_cache_memory")

    @classmethod
    def from_kwargs(cls, **settings: Any) -> EngineConfig:
        """Build a config; an unknown name raises `ConfigError` with the nearest known one."""
        known = [f.name for f in dataclasses.fields(cls)]
        for name in settings:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
                raise ConfigError(f"unknown setting {name!r}; {hint}", param=name)
        return cls(**settings)

    @property
    def kv_dtype(self) -> str:
        """How keys and values are stored: float16 or float32."""
        return _KV_DTYPES[self.kv_cache_dtype]

    def resolve(
        self, *, context_length: int, kv_bytes_per_token: int, available_bytes: int
    ) -> ResolvedConfig:
        """Fill in the automatic values for a model on a machine, each with its reason.

        ``available_bytes`` is the memory that is still free once the weights are loaded.
        """
        block_bytes = kv_bytes_per_token * self.block_size
        num_blocks, why = self._pool(block_bytes, available_bytes)
        notes = [
            f"KV cache: {num_blocks} blocks of {self.block_size} tokens, "
            f"{format_bytes(num_blocks * block_bytes)} ({why})"
        ]
        warnings = []
        max_model_len = self.max_model_len or context_length
        if max_model_len > context_length:
            raise ConfigError(
                f"max_model_len={max_model_len} is more than the {context_length} tokens that "
                "the model's context has; lower it",
                param="max_model_len",
            )
        capacity = num_blocks * self.block_size
        if max_model_len > capacity:
            warnings.append(
                f"max_model_len is {capacity} instead of {max_model_len}: the KV cache holds no "
                "more; raise kv_cache_memory or num_kv_blocks for longer requests"
            )
            max_model_len = capacity
        return ResolvedConfig(self, num_blocks, max_model_len, tuple(notes), tuple(warnings))

    def _pool(self, block_bytes: int, available_bytes: int) -> tuple[int, str]:
        """Return the number of blocks, and why it is that."""
        if self.num_kv_blocks is not None:
            budget = self.num_kv_blocks * block_bytes
            if budget > available_bytes:
                raise ConfigError(
                    f"num_kv_blocks={self.num_kv_blocks} needs {format_bytes(budget)}, and "
                    f"{format_bytes(available_bytes)} of memory are free; lower it",
                    param="num_kv_blocks",
                )
            return self.num_kv_blocks, "num_kv_blocks"
        if self.kv_cache_memory is not None:
            budget = parse_bytes(self.kv_cache_memory, "kv_cache_memory")
            if budget > available_bytes:
                raise ConfigError(
                    f"kv_cache_memory={self.kv_cache_memory} is more than the "
                    f"{format_bytes(available_bytes)} of memory that are free; lower it",
                    param="kv_cache_memory",
                )
            why = "kv_cache_memory"
        else:
            budget = min(available_bytes // 2, MOST_AUTOMATIC_KV_BYTES)
            why = f"half of the {format_bytes(available_bytes)} free"
            if budget == MOST_AUTOMATIC_KV_BYTES:
                why = f"{format_bytes(budget)} unless asked; {format_bytes(available_bytes)} free"
        if budget < block_bytes:
            raise ConfigError(
                f"{format_bytes(budget)} for the KV cache hold no block of "
                f"{format_bytes(block_bytes)}; free some memory or raise kv_cache_memory",
                param="kv_cache_memory",
            )
        return budget // block_bytes, why


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """A config whose automatic values are filled in."""

    config: EngineConfig
    num_kv_blocks: int
    max_model_len: int
    notes: tuple[str, ...]
    """What was chosen, and why, a line each."""
    warnings: tuple[str, ...]
    """What was asked for and could not be had."""


def parse_bytes(value: int | str, param: str) -> int:
    """Return a size in bytes from ``2GiB``, ``500MB``, ``1.5g`` or a plain number of bytes."""
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([kmg]i?)?b?\s*", str(value).lower())
    size = 0 if match is None else int(float(match[1]) * _UNITS[match[2] or ""])
    if isinstance(value, bool) or not 1 <= size < 1 << 63:
        raise _refused(
            param, value, "a number of bytes, or of kB, MB, GB, KiB, MiB or GiB, such as 2GiB"
        )
    return size


def format_bytes(count: int) -> str:
    """Return ``count`` bytes for people: ``93.8 MiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"


def _check_int(name: str, value: object, low: int, high: int | None = None) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):  # type: ignore[operator]
        limit = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise _refused(name, value, f"a whole number {limit}")


def _check_choice(name: str, value: object, known: Any) -> None:
    if not isinstance(value, str) or value not in known:
        raise _refused(name, value, f"one of {', '.join(known)}")


def _refused(name: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"{name} is {shown(value)}; it must be {wanted}", param=name)
