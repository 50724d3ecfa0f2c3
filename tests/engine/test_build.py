"""An engine is built for its own context, and its cache knows what that chose."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from family_cases import load_case
from octavo.config import EngineConfig
from octavo.engine import build
from octavo.model.hf_spec import spec_from_hf
from octavo.model.loader import Model
from octavo.model.weights import hf_weights
from octavo.sampling.params import SamplingParams

if TYPE_CHECKING:
    import pytest


def first_key(monkeypatch: pytest.MonkeyPatch, case_name: str, max_model_len: int) -> Any:
    """Return the engine's rope, and the key that its cache gives to the first block of a prompt."""
    case = load_case(case_name)
    spec = spec_from_hf(case.config, "c")
    tokenizer: Any = SimpleNamespace(eos_ids=frozenset())
    tensors = hf_weights(case.tensors, spec, "f")
    model = Model(Path("f"), spec, tensors, tokenizer, None, b"fingerprint")
    monkeypatch.setattr(build, "load_model", lambda name: model)
    config = EngineConfig(model="m", max_model_len=max_model_len, num_kv_blocks=4)
    core = build.build_engine(config).core
    request = core.add_request("r", case.tokens[:20], SamplingParams(max_tokens=1))
    while core.has_requests:
        core.step()
    return core.backend.spec.layers[0].rope, request.block_keys[0]


def test_longrope_is_chosen_for_the_engines_context(monkeypatch: pytest.MonkeyPatch) -> None:
    short_rope, short_key = first_key(monkeypatch, "phi3_long", 32)
    long_rope, long_key = first_key(monkeypatch, "phi3_long", 48)
    assert short_rope.factors == (1.0, 1.5, 2.0)
    assert long_rope.factors == (1.0, 4.0, 16.0)
    assert short_key != long_key


def test_other_models_share_between_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_key(monkeypatch, "llama3", 32)[1] == first_key(monkeypatch, "llama3", 48)[1]
