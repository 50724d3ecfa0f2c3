"""A spec is read from a sound file, and everything that does not fit is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from octavo.errors import ModelFileError
from octavo.model.files.gguf import GGUFFile
from octavo.model.files.gguf_header import parse_header
from octavo.model.gguf_spec import spec_from_gguf
from octavo.model.spec import LayerSpec, ModelSpec, RopeSpec
from octavo.model.weights import gguf_weights, tensor_shapes
from tiny_model import MIN_VOCAB_SIZE, RawTensor, gguf_bytes, tiny_model

if TYPE_CHECKING:
    from pathlib import Path


def rewritten(
    source: Path,
    target: Path,
    *,
    metadata: dict[str, object] | None = None,
    drop: tuple[str, ...] = (),
    shapes: dict[str, tuple[int, ...]] | None = None,
) -> GGUFFile:
    """Write a model again with keys and tensors replaced (row-major shapes), added or dropped."""
    file = GGUFFile.open(source)
    keys = {**file.metadata, **(metadata or {})}
    tensors = {
        name: RawTensor(name, found.shape[::-1], found.type, found.data.tobytes())
        for name, found in file.tensors.items()
    }
    for name, shape in (shapes or {}).items():
        size = 4
        for dim in shape:
            size *= dim
        tensors[name] = RawTensor(name, shape[::-1], 0, bytes(size))
    target.write_bytes(
        gguf_bytes(
            [(key, value) for key, value in keys.items() if key not in drop],
            [found for name, found in tensors.items() if name not in drop],
        )
    )
    return GGUFFile.open(target)


def refusal(file: GGUFFile) -> str:
    with pytest.raises(ModelFileError) as caught:
        gguf_weights(file, spec_from_gguf(file))
    assert caught.value.path == file.path
    return str(caught.value)


def test_the_real_model(smollm2_path: Path) -> None:
    spec = spec_from_gguf(GGUFFile.open(smollm2_path))
    assert spec == ModelSpec(
        architecture="llama",
        layers=(LayerSpec(RopeSpec(theta=100_000.0, dim=64, layout="interleaved")),) * 30,
        hidden_size=576,
        intermediate_size=1536,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        vocab_size=49_152,
        context_length=8192,
        norm_eps=pytest.approx(1e-5),
        tied_embeddings=True,
    )
    assert spec.gqa_group == 3
    assert spec.kv_bytes_per_token(2) == 23_040


def test_every_switch_of_a_tiny_model(tmp_path: Path) -> None:
    path = tiny_model(
        tmp_path / "m.gguf",
        num_layers=3,
        hidden_size=96,
        num_heads=6,
        num_kv_heads=3,
        head_dim=32,
        intermediate_size=64,
        vocab_size=320,
        context_length=99,
        tied=False,
        attention_bias=True,
        qk_norm=True,
        rms_norm_eps=2.0**-10,
        rope_theta=5000.0,
        rope_dim=16,
    )
    assert spec_from_gguf(GGUFFile.open(path)) == ModelSpec(
        architecture="llama",
        layers=(LayerSpec(RopeSpec(theta=5000.0, dim=16, layout="interleaved")),) * 3,
        hidden_size=96,
        intermediate_size=64,
        num_heads=6,
        num_kv_heads=3,
        head_dim=32,
        vocab_size=320,
        context_length=99,
        norm_eps=2.0**-10,
        tied_embeddings=False,
        attention_bias=True,
        qk_norm=True,
    )


def test_the_shapes_are_those_of_the_file(smollm2_path: Path) -> None:
    file = GGUFFile.open(smollm2_path)
    assert tensor_shapes(spec_from_gguf(file)) == {
        name: found.shape for name, found in file.tensors.items()
    }


def test_optional_keys_have_their_defaults(tiny_model_path: Path, tmp_path: Path) -> None:
    optional = (
        "llama.attention.key_length",
        "llama.attention.value_length",
        "llama.rope.freq_base",
        "llama.rope.dimension_count",
        "llama.vocab_size",
    )
    spec = spec_from_gguf(rewritten(tiny_model_path, tmp_path / "m.gguf", drop=optional))
    assert spec.head_dim == 16
    assert spec.layers[0] == LayerSpec(RopeSpec(theta=10_000.0, dim=16, layout="interleaved"))
    assert spec.vocab_size == MIN_VOCAB_SIZE


@pytest.mark.parametrize(
    "metadata",
    [
        {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 0.0},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1.0},
        {"llama.rope.scale_linear": 1.0},
        {"llama.expert_count": 0, "llama.expert_used_count": 0},
        {"llama.rope.scaling.factor": 1.0},
        {"llama.final_logit_softcapping": 0.0},
        {"llama.tensor_data_layout": "Meta AI original pth"},
        {"llama.attention.sliding_window": 0},
        {"llama.attention.sliding_window": 512},
        {"llama.attention.causal": True},
    ],
)
def test_features_that_change_nothing_are_accepted(
    tiny_model_path: Path, tmp_path: Path, metadata: dict[str, object]
) -> None:
    spec = spec_from_gguf(rewritten(tiny_model_path, tmp_path / "m.gguf", metadata=metadata))
    assert spec == spec_from_gguf(GGUFFile.open(tiny_model_path))


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"general.architecture": "mamba2"}, ["architecture 'mamba2'", "llama"]),
        ({"general.architecture": 1}, ["general.architecture", "string"]),
        ({"llama.block_count": 0}, ["llama.block_count is 0"]),
        ({"llama.block_count": 3}, ["blk.2.attn_norm.weight (64,) is missing", "and 1 more"]),
        ({"llama.block_count": 21}, ["llama.block_count is 21", "20 tensors"]),
        ({"llama.block_count": 2**31 - 1}, ["llama.block_count", "20 tensors"]),
        ({"llama.block_count": 2**32 - 1}, ["llama.block_count", "2147483647"]),
        ({"llama.block_count": "2"}, ["llama.block_count", "integer", "str"]),
        ({"llama.block_count": True}, ["llama.block_count", "integer", "bool"]),
        ({"llama.block_count": 2.0}, ["llama.block_count", "integer", "float"]),
        ({"llama.block_count": 1}, ["blk.1.attn_norm.weight is not known"]),
        ({"llama.attention.head_count": 0}, ["head_count is 0"]),
        ({"llama.attention.head_count": 3}, ["head_count is 3", "head_count_kv, 2"]),
        ({"llama.attention.head_count": [4, 4]}, ["head_count", "layer to layer"]),
        ({"llama.attention.head_count_kv": 0}, ["head_count_kv is 0"]),
        ({"llama.attention.value_length": 8}, ["value_length is 8", "16"]),
        ({"llama.rope.dimension_count": 15}, ["dimension_count is 15", "even"]),
        ({"llama.rope.dimension_count": 18}, ["dimension_count is 18", "16"]),
        ({"llama.embedding_length": 32}, ["token_embd.weight", "(288, 32)", "(288, 64)"]),
        ({"llama.vocab_size": 300}, ["token_embd.weight", "(300, 64)", "(288, 64)"]),
        ({"llama.vocab_size": 200}, ["288 tokens", "200 embeddings"]),
        ({"llama.feed_forward_length": 64}, ["blk.0.ffn_gate.weight", "(64, 64)", "(128, 64)"]),
        ({"llama.context_length": 0}, ["context_length is 0"]),
        ({"llama.attention.layer_norm_rms_epsilon": 0.0}, ["epsilon is 0.0", "positive"]),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, ["epsilon is nan"]),
        ({"llama.attention.layer_norm_rms_epsilon": "x"}, ["epsilon", "number"]),
        ({"llama.rope.freq_base": float("inf")}, ["freq_base is inf", "finite"]),
        ({"llama.rope.freq_base": -1.0}, ["freq_base is -1.0"]),
        ({"llama.rope.scaling.type": "yarn"}, ["rope.scaling.type", "yarn"]),
        ({"llama.expert_count": 8}, ["expert_count", "mixtures"]),
        ({"llama.attention.causal": False}, ["causal"]),
        ({"llama.attention.causal": 0}, ["causal", "true or false"]),
        ({"llama.attn_logit_softcapping": 30.0}, ["llama.attn_logit_softcapping", "not known"]),
        ({"llama.unheard_of": 1}, ["llama.unheard_of", "not known"]),
    ],
)
def test_an_impossible_or_unsupported_key_is_refused(
    tiny_model_path: Path, tmp_path: Path, metadata: dict[str, object], words: list[str]
) -> None:
    message = refusal(rewritten(tiny_model_path, tmp_path / "m.gguf", metadata=metadata))
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    "key",
    [
        "general.architecture",
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
    ],
)
def test_a_missing_key_is_named(tiny_model_path: Path, tmp_path: Path, key: str) -> None:
    message = refusal(rewritten(tiny_model_path, tmp_path / "m.gguf", drop=(key,)))
    assert f"{key} is missing" in message


def test_every_missing_tensor_is_named(tiny_model_path: Path, tmp_path: Path) -> None:
    names = tensor_shapes(spec_from_gguf(GGUFFile.open(tiny_model_path)))
    for name, shape in names.items():
        # An unused tensor in its place, so that their number is right.
        file = rewritten(
            tiny_model_path, tmp_path / f"{name}.gguf", drop=(name,), shapes={"spare": (1,)}
        )
        message = refusal(file)
        assert f"{name} {shape} is missing" in message
        assert "spare is not known" in message


def test_every_misshaped_tensor_is_named(tiny_model_path: Path, tmp_path: Path) -> None:
    names = tensor_shapes(spec_from_gguf(GGUFFile.open(tiny_model_path)))
    for name, shape in names.items():
        wrong = (*shape[:-1], shape[-1] + 1)
        file = rewritten(tiny_model_path, tmp_path / f"{name}.gguf", shapes={name: wrong})
        assert f"{name} must have shape {shape}, and has {wrong}" in refusal(file)


def test_layers_must_agree_about_biases_and_norms(tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "m.gguf", attention_bias=True, qk_norm=True)
    for name in ("blk.1.attn_v.bias", "blk.1.attn_k_norm.weight"):
        assert f"{name}" in refusal(rewritten(path, tmp_path / "n.gguf", drop=(name,)))
    plain = tiny_model(tmp_path / "plain.gguf")
    file = rewritten(plain, tmp_path / "o.gguf", shapes={"blk.1.attn_q.bias": (64,)})
    assert "blk.1.attn_q.bias is not known" in refusal(file)


def test_a_long_list_of_faults_is_cut(tiny_model_path: Path, tmp_path: Path) -> None:
    spares = {f"spare.{index}": (1,) for index in range(100)}
    assert "and 92 more" in refusal(rewritten(tiny_model_path, tmp_path / "m.gguf", shapes=spares))


def test_a_tiny_model_is_the_same_every_time(tiny_model_path: Path, tmp_path: Path) -> None:
    again = tiny_model(tmp_path / "again.gguf")
    assert again.read_bytes() == tiny_model_path.read_bytes()
    tokens = parse_header(again.read_bytes(), again).metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert len(set(map(str, tokens))) == MIN_VOCAB_SIZE
