"""Octavo: an LLM inference engine for CPUs that is Python all the way down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.engine.llm import LLM
    from octavo.engine.outputs import CompletionOutput, Logprob, RequestOutput
    from octavo.sampling.params import SamplingParams
    from octavo.sampling.structured import StructuredOutputs

__version__ = "0.1.0"

_HOMES = {
    "LLM": "octavo.engine.llm",
    "CompletionOutput": "octavo.engine.outputs",
    "EngineConfig": "octavo.config",
    "Logprob": "octavo.engine.outputs",
    "RequestOutput": "octavo.engine.outputs",
    "SamplingParams": "octavo.sampling.params",
    "StructuredOutputs": "octavo.sampling.structured",
}

__all__ = [
    "LLM",
    "CompletionOutput",
    "EngineConfig",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputs",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import octavo` stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
