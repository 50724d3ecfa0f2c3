"""Views give a fused, transposed or shifted tensor's values; what does not fit is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from family_cases import NAMES, ArrayTensor, load_case
from family_gguf import to_gguf
from octavo.errors import ModelFileError
from octavo.model.files.gguf import GGMLType, GGUFFile
from octavo.model.gguf_spec import spec_from_gguf
from octavo.model.hf_spec import spec_from_hf
from octavo.model.views import PlusOne, RowSlice, Transposed
from octavo.model.weights import gguf_weights, hf_weights, tensor_shapes
from tiny_model import RawTensor, gguf_bytes, quantize

if TYPE_CHECKING:
    from pathlib import Path

RNG = np.random.default_rng(0)


def array(*shape: int) -> ArrayTensor:
    return ArrayTensor("t", RNG.normal(size=shape).astype(np.float32))


def refusal(name: str, changes: dict[str, ArrayTensor | None]) -> str:
    """Return why a case is refused whose tensors are changed; None drops one."""
    case = load_case(name)
    tensors = {
        key: tensor for key, tensor in {**case.tensors, **changes}.items() if tensor is not None
    }
    with pytest.raises(ModelFileError) as caught:
        hf_weights(tensors, spec_from_hf(case.config, "c"), "folder")
    assert caught.value.path == "folder"
    return str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_both_formats_give_the_same_weights(name: str, tmp_path: Path) -> None:
    case = load_case(name)
    spec = spec_from_hf(case.config, "c")
    folder = hf_weights(case.tensors, spec, "folder")
    path = tmp_path / "m.gguf"
    path.write_bytes(to_gguf(case.config, case.weights))
    file = GGUFFile.open(path)
    single = gguf_weights(file, spec_from_gguf(file))
    assert folder.keys() == single.keys() == tensor_shapes(spec).keys()
    for key, shape in tensor_shapes(spec).items():
        values = folder[key].dequantize()
        assert values.shape == folder[key].shape == single[key].shape == shape
        assert folder[key].num_elements == values.size
        assert folder[key].num_bytes == len(folder[key].data) == values.nbytes
        permuted = spec.architecture in ("llama", "smollm3") and key.split(".")[-2] in (
            "attn_q",
            "attn_k",
        )
        if not permuted:
            assert np.array_equal(values, single[key].dequantize())


def test_rows_of_a_quantised_tensor_stay_quantised(tmp_path: Path) -> None:
    values = RNG.normal(size=(6, 64)).astype(np.float32)
    raw = RawTensor("w", (64, 6), GGMLType.Q8_0, quantize(values, "Q8_0"))
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes([], [raw]))
    whole = GGUFFile.open(path).tensors["w"]
    rows = RowSlice(whole, 2, 5)
    assert (rows.name, rows.shape, rows.num_elements) == ("w[2:5]", (3, 64), 192)
    assert rows.type is GGMLType.Q8_0
    assert np.shares_memory(rows.data, whole.data)
    assert rows.data.tobytes() == whole.data.tobytes()[2 * 68 : 5 * 68]
    assert np.array_equal(rows.dequantize(), whole.dequantize()[2:5])


def test_views_of_views() -> None:
    stored = array(4, 6)
    view = RowSlice(Transposed(stored), 1, 3)
    assert view.shape == (2, 4)
    assert np.array_equal(view.dequantize(), stored.values.T[1:3])
    assert np.array_equal(view.data.view(np.float32).reshape(2, 4), stored.values.T[1:3])
    norm = PlusOne(array(5))
    assert norm.type is GGMLType.F32
    assert np.array_equal(norm.dequantize(), norm.source.dequantize() + 1)


def test_a_fused_vector_of_blocks_is_refused(tmp_path: Path) -> None:
    case = load_case("gpt2")
    path = tmp_path / "m.gguf"
    path.write_bytes(to_gguf(case.config, case.weights))
    file = GGUFFile.open(path)
    tensors = [
        RawTensor(name, found.shape[::-1], found.type, found.data.tobytes())
        for name, found in file.tensors.items()
        if name != "blk.0.attn_qkv.bias"
    ]
    bias = np.zeros(96, np.float32)
    tensors.append(RawTensor("blk.0.attn_qkv.bias", (96,), 8, quantize(bias, "Q8_0")))
    path.write_bytes(gguf_bytes(list(file.metadata.items()), tensors))
    changed = GGUFFile.open(path)
    with pytest.raises(ModelFileError, match=r"blk.0.attn_qkv.bias has type Q8_0"):
        gguf_weights(changed, spec_from_gguf(changed))


def test_gpt2_as_the_hub_has_it() -> None:
    """Saved without its head, and with its masks."""
    case = load_case("gpt2")
    tensors = {key.removeprefix("transformer."): value for key, value in case.tensors.items()}
    tensors |= {"h.0.attn.bias": array(1, 1, 64, 64), "h.1.attn.masked_bias": array(1)}
    spec = spec_from_hf(case.config, "c")
    found, usual = hf_weights(tensors, spec, "f"), hf_weights(case.tensors, spec, "f")
    for key, tensor in usual.items():
        assert np.array_equal(found[key].dequantize(), tensor.dequantize())


def test_a_tied_head_may_be_repeated() -> None:
    case = load_case("qwen2")
    values = case.tensors["model.embed_tokens.weight"].dequantize()
    tensors = {**case.tensors, "lm_head.weight": ArrayTensor("lm_head.weight", values)}
    assert "output.weight" not in hf_weights(tensors, spec_from_hf(case.config, "c"), "f")
    for other in (values + np.float32(1), values[1:]):
        head = ArrayTensor("lm_head.weight", other)
        assert "but lm_head.weight differs from" in refusal("qwen2", {"lm_head.weight": head})
    assert "lm_head.weight (96, 32) is missing" in refusal("llama", {"lm_head.weight": None})


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("llama", {"spare": array(1)}, "spare is not known"),
        ("llama", {"model.norm.weight": None}, "model.norm.weight (32,) is missing"),
        ("llama", {"model.norm.weight": array(31)}, "must have shape (32,), and has (31,)"),
        ("llama", {"model.layers.0.self_attn.q_proj.bias": array(32)}, "q_proj.bias is not known"),
        ("qwen2", {"model.layers.2.self_attn.v_proj.bias": None}, "v_proj.bias (32,) is missing"),
        ("phi3_long", {"model.layers.1.mlp.gate_up_proj.weight": array(48, 32)}, "(96, 32), and"),
        ("gpt2", {"transformer.h.0.attn.c_attn.weight": array(96, 32)}, "shape (32, 96), and has"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    name: str, changes: dict[str, ArrayTensor | None], words: str
) -> None:
    assert words in refusal(name, changes)
