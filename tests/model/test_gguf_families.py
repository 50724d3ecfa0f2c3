"""What GGUF files of the families say, leave unsaid, and may not say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from family_cases import load_case
from family_gguf import to_gguf
from octavo.errors import ModelFileError
from octavo.model.files.gguf import GGUFFile
from octavo.model.gguf_spec import spec_from_gguf
from octavo.model.spec import ModelSpec, RopeSpec
from tiny_model import RawTensor, gguf_bytes

if TYPE_CHECKING:
    from pathlib import Path


def spec_of(
    name: str,
    folder: Path,
    metadata: dict[str, object] | None = None,
    *,
    drop: tuple[str, ...] = (),
    factors: dict[str, list[float]] | None = None,
) -> ModelSpec:
    """Return the spec of a case's file with keys and RoPE tensors changed."""
    path = folder / "m.gguf"
    case = load_case(name)
    path.write_bytes(to_gguf(case.config, case.weights))
    file = GGUFFile.open(path)
    keys = {**file.metadata, **(metadata or {})}
    tensors = {
        key: RawTensor(key, found.shape[::-1], found.type, found.data.tobytes())
        for key, found in file.tensors.items()
    }
    for key, values in (factors or {}).items():
        tensors[key] = RawTensor(key, (len(values),), 0, np.array(values, "<f4").tobytes())
    path.write_bytes(
        gguf_bytes(
            [(key, value) for key, value in keys.items() if key not in drop],
            [tensor for key, tensor in tensors.items() if key not in drop],
        )
    )
    return spec_from_gguf(GGUFFile.open(path))


def windows(spec: ModelSpec) -> list[int | None]:
    return [layer.window for layer in spec.layers]


def test_a_llama_with_a_window_is_a_mistral(tmp_path: Path) -> None:
    key = "llama.attention.sliding_window"
    assert windows(spec_of("llama", tmp_path)) == [None, None]
    assert windows(spec_of("llama", tmp_path, {key: 16})) == [16, 16]
    assert windows(spec_of("llama", tmp_path, {key: 64})) == [None, None]  # the context


def test_gemma3s_unsaid_pattern_and_base(tmp_path: Path) -> None:
    spec = spec_of("gemma3", tmp_path, drop=("gemma3.rope.freq_base_swa",))
    assert windows(spec) == [8, 8, 8, 8, 8, None, 8]
    ropes = [layer.rope for layer in spec.layers]
    assert ropes[0] == RopeSpec(theta=10_000.0, dim=16, layout="half")
    assert ropes[5] == RopeSpec(theta=1000.0, dim=16, layout="half", factors=(8.0,) * 8)


def test_gemma3_without_a_window_is_global(tmp_path: Path) -> None:
    spec = spec_of("gemma3", tmp_path, drop=("gemma3.attention.sliding_window",))
    assert windows(spec) == [None] * 7
    assert {layer.rope.theta for layer in spec.layers if layer.rope} == {1000.0}


def test_a_pattern_is_a_period_or_a_list(tmp_path: Path) -> None:
    key = "gemma3.attention.sliding_window_pattern"
    for pattern, expected in (
        (0, [8] * 7),
        (1, [None] * 7),
        (3, [8, 8, None, 8, 8, None, 8]),
        ([True, False, False, True, True, True, True], [8, None, None, 8, 8, 8, 8]),
    ):
        assert windows(spec_of("gemma3", tmp_path, {key: pattern})) == expected
    with pytest.raises(ModelFileError, match=r"sliding_window_pattern has 2 values.* 7"):
        spec_of("gemma3", tmp_path, {key: [True, False]})


def test_qwens_window_needs_a_pattern(tmp_path: Path) -> None:
    assert windows(spec_of("qwen2", tmp_path)) == [None, 9, 9]
    with pytest.raises(ModelFileError, match=r"qwen2.attention.sliding_window_pattern is missing"):
        spec_of("qwen2", tmp_path, drop=("qwen2.attention.sliding_window_pattern",))


def test_the_scale_of_gemma3_27b(tmp_path: Path) -> None:
    plain = spec_of("gemma3", tmp_path, drop=("gemma3.attention.scale",))
    assert plain.attention_scale is None
    keys: dict[str, object] = {"gemma3.block_count": 62}
    wide = spec_of("gemma3", tmp_path, keys, drop=("gemma3.attention.scale",))
    assert wide.attention_scale == (32 / 4) ** -0.5


def test_smollm3s_layers_without_rope(tmp_path: Path) -> None:
    spec = spec_of("smollm3", tmp_path)
    assert [layer.rope is None for layer in spec.layers] == [False, False, False, True, False]


def test_rope_is_scaled_by_a_tensor_or_a_factor(tmp_path: Path) -> None:
    every = {"rope_freqs.weight": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]}
    rope = spec_of("llama", tmp_path, factors=every).layers[0].rope
    assert rope is not None
    assert rope.factors == (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
    old = spec_of("llama", tmp_path, {"llama.rope.scale_linear": 2.0}).layers[0].rope
    assert old is not None
    assert old.factors == (2.0,) * 8


@pytest.mark.parametrize(
    ("name", "metadata", "drop", "factors", "words"),
    [
        ("llama", {}, (), {"rope_freqs.weight": [1.0]}, "rope_freqs.weight must have shape"),
        ("llama", {}, (), {"rope_freqs.weight": [1.0] * 7 + [0.0]}, "rope_freqs.weight.*positive"),
        ("linear", {}, (), {"rope_freqs.weight": [2.0] * 4}, "more than one way"),
        ("phi3_long", {}, ("rope_factors_long.weight",), {}, "rope.scaling.type is 'longrope'"),
        ("phi3_long", {}, ("rope_factors_short.weight",), {}, "without the other"),
        ("phi3_long", {}, ("phi3.rope.scaling.attn_factor",), {}, "attn_factor is missing"),
        (
            "phi3_long",
            {},
            ("phi3.rope.scaling.original_context_length",),
            {},
            "original_context_length is missing",
        ),
        ("phi3_long", {"phi3.rope.scaling.type": "yarn"}, (), {}, "rope.scaling.type is 'yarn'"),
        ("gemma3", {"gemma3.final_logit_softcapping": 30.0}, (), {}, "final_logit_softcapping"),
        ("gpt2", {}, ("gpt2.attention.layer_norm_epsilon",), {}, "layer_norm_epsilon is missing"),
        ("qwen3", {"qwen3.expert_count": 128}, (), {}, "expert_count.*mixtures"),
        ("qwen3", {"qwen3.rope.dimension_sections": [1, 2]}, (), {}, "dimension_sections"),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(
    name: str,
    metadata: dict[str, object],
    drop: tuple[str, ...],
    factors: dict[str, list[float]],
    words: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(ModelFileError, match=words):
        spec_of(name, tmp_path, metadata, drop=drop, factors=factors)
