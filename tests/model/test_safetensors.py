"""The safetensors reader agrees with the safetensors package, and refuses all else cleanly."""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from octavo.errors import ModelFileError, ModelNotFoundError
from octavo.model.files.json_file import MAX_VALUES
from octavo.model.files.quants import GGMLType
from octavo.model.files.safetensors import open_folder
from octavo.model.files.safetensors_header import BITS, MAX_HEADER_BYTES, parse_header
from tiny_folder import CONFIG, entry, packed_tensors, safetensors_bytes, tiny_folder

NOWHERE = Path("x.safetensors")
INDEX = "model.safetensors.index.json"
RNG = np.random.default_rng(0)
TENSORS = {
    "model.embed_tokens.weight": ("BF16", RNG.normal(size=(5, 8)).astype(np.float32)),
    "model.norm.weight": ("F32", RNG.normal(size=8).astype(np.float32)),
    "lm_head.weight": ("F16", RNG.normal(size=(5, 8)).astype(np.float32)),
    "scalar": ("F32", np.float32(RNG.normal(size=()))),
}


def refusal(content: bytes) -> ModelFileError:
    """Parse a file that must be refused, at a byte inside it, in little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError) as caught:
            parse_header(content, NOWHERE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * len(content) + 200_000, f"{peak} bytes for a file of {len(content)}"
    assert caught.value.path == NOWHERE
    assert caught.value.offset is not None
    assert 0 <= caught.value.offset <= len(content)
    return caught.value


# Sound folders


@pytest.mark.parametrize("num_shards", [0, 1, 3])
def test_a_folder_is_read_as_it_was_written(tmp_path: Path, num_shards: int) -> None:
    folder = open_folder(tiny_folder(tmp_path / "m", TENSORS, num_shards=num_shards))
    assert folder.config == CONFIG
    assert folder.tensors.keys() == TENSORS.keys()
    folder.require_supported()
    for name, (dtype, values) in TENSORS.items():
        tensor = folder.tensors[name]
        assert (tensor.name, tensor.dtype, tensor.type) == (name, dtype, GGMLType[dtype])
        assert (tensor.shape, tensor.num_elements) == (values.shape, values.size)
        assert tensor.num_bytes == len(tensor.data) == values.size * BITS[dtype] // 8
        tolerance = {"F32": 0, "F16": 1e-3, "BF16": 1e-2}[dtype]
        assert tensor.dequantize().dtype == np.float32
        np.testing.assert_allclose(tensor.dequantize(), values, rtol=tolerance)
    assert folder.size == sum(tensor.num_bytes for tensor in folder.tensors.values())


def test_files_of_the_safetensors_package_are_read_to_the_bit(tmp_path: Path) -> None:
    arrays = {
        "f32": RNG.normal(size=(3, 5)).astype(np.float32),
        "f16": RNG.normal(size=(7,)).astype(np.float16),
        "i64": np.arange(6).reshape(2, 3),
        "flags": np.array([True, False]),
        'a "name" \\ with ü and\n': np.ones((1, 2, 3), np.float32),
    }
    path = tiny_folder(tmp_path / "m", {}) / "model.safetensors"
    safetensors.numpy.save_file(arrays, path, metadata={"format": "np"})
    folder = open_folder(tmp_path / "m")
    assert folder.tensors.keys() == arrays.keys()
    for name, values in arrays.items():
        tensor = folder.tensors[name]
        assert tensor.shape == values.shape
        assert tensor.data.tobytes() == values.tobytes()
        if tensor.supported:
            np.testing.assert_array_equal(tensor.dequantize(), values.astype(np.float32))


def test_what_the_writer_of_these_tests_writes_the_package_reads() -> None:
    found = dict(safetensors.deserialize(packed_tensors(TENSORS)))
    assert found.keys() == TENSORS.keys()
    for info in parse_header(packed_tensors(TENSORS), NOWHERE):
        expected = found[info.name]
        assert (info.dtype, list(info.shape)) == (expected["dtype"], expected["shape"])
        assert info.num_bytes == len(expected["data"])


@pytest.mark.parametrize("padding", range(4))
def test_data_may_begin_at_any_byte(tmp_path: Path, padding: int) -> None:
    path = tiny_folder(tmp_path / "m", {}) / "model.safetensors"
    path.write_bytes(packed_tensors(TENSORS, padding=padding))
    tensor = open_folder(tmp_path / "m").tensors["model.norm.weight"]
    np.testing.assert_array_equal(tensor.dequantize(), TENSORS["model.norm.weight"][1])


def test_views_outlive_the_folder_and_cannot_be_written(tmp_path: Path) -> None:
    view = open_folder(tiny_folder(tmp_path / "m", TENSORS)).tensors["lm_head.weight"].data
    assert view.shape == (80,)
    assert not view.flags.writeable
    assert not view.flags.owndata


def test_links_into_a_cache_are_followed(tmp_path: Path) -> None:
    tiny_folder(tmp_path / "blobs", TENSORS, num_shards=2)
    (tmp_path / "snapshot").mkdir()
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(file)
    assert open_folder(tmp_path / "snapshot").tensors.keys() == TENSORS.keys()


def test_other_dtypes_are_listed_and_refused_at_use(tmp_path: Path) -> None:
    header = {"ids": entry("I64", [2], 0, 16), "tiny": entry("F4", [4], 16, 18)}
    path = tiny_folder(tmp_path / "m", {}) / "model.safetensors"
    path.write_bytes(safetensors_bytes(header, bytes(18)))
    folder = open_folder(tmp_path / "m")
    assert [tensor.dtype for tensor in folder.tensors.values()] == ["I64", "F4"]
    assert folder.tensors["ids"].data.shape == (16,)
    for refused in (folder.require_supported, folder.tensors["ids"].dequantize):
        with pytest.raises(ModelFileError, match=r"'ids'.*at byte") as caught:
            refused()
        assert "I64" in str(caught.value)
        assert "BF16" in str(caught.value)
        assert caught.value.path == path


# The fingerprint


def test_the_fingerprint_is_of_the_content_alone(tmp_path: Path) -> None:
    one = open_folder(tiny_folder(tmp_path / "one", TENSORS)).fingerprint
    assert len(one) == 16
    backwards = dict(reversed(TENSORS.items()))
    for index, num_shards in enumerate((0, 1, 2)):
        path = tiny_folder(tmp_path / str(index), backwards, num_shards=num_shards)
        assert open_folder(path).fingerprint == one


def test_the_fingerprint_is_the_same_on_every_machine(tmp_path: Path) -> None:
    tensors = {"t": ("F32", np.arange(4, dtype=np.float32))}
    path = tiny_folder(tmp_path / "m", tensors, config={"a": 1})
    assert open_folder(path).fingerprint.hex() == "5ebcd568d654cd166340a095e30eadad"


def test_the_fingerprint_sees_config_names_types_shapes_and_weights(tmp_path: Path) -> None:
    values = np.arange(2048, dtype=np.float32)
    variants = [
        ({"t": ("F32", values)}, {"a": 1}),
        ({"t": ("F32", values)}, {"a": 2}),
        ({"u": ("F32", values)}, {"a": 1}),
        ({"t": ("F32", values.reshape(2, -1))}, {"a": 1}),
        ({"t": ("F16", values)}, {"a": 1}),
        ({"t": ("BF16", values)}, {"a": 1}),
        ({"t": ("F32", values + 1)}, {"a": 1}),
    ]
    fingerprints = {
        open_folder(tiny_folder(tmp_path / str(index), tensors, config=config)).fingerprint
        for index, (tensors, config) in enumerate(variants)
    }
    assert len(fingerprints) == len(variants)


# Hostile headers


def one(dtype: object = "F32", shape: object = (4,), offsets: object = (0, 16)) -> dict:
    return {"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    ("content", "message", "offset"),
    [
        (b"", "only 0 bytes", 0),
        (bytes(9), "only 9 bytes", 0),
        (safetensors_bytes(one(), bytes(16), length=2**64 - 1), "length is", 0),
        (safetensors_bytes(one(), length=2**63), "length is", 0),
        (safetensors_bytes({}, length=3), "length is 3, and at most 2", 0),
        (b"GGUF" + bytes(60), "is this a safetensors file", 0),
        (safetensors_bytes(b"\0" * 20), "not JSON", 8),
        (safetensors_bytes(b"[]"), "is a list, not an object", 8),
        (safetensors_bytes(b"17"), "is a int, not an object", 8),
        (safetensors_bytes(b'{"a": '), "not JSON", 14),
        (safetensors_bytes('{"ü": x}'.encode()), "not JSON", 15),
        (safetensors_bytes(b'{"a\xff": 1}'), "not UTF-8", 11),
        (safetensors_bytes(b'{"\\ud800": 1}'), "half a surrogate", 8),
        (safetensors_bytes(b'{"a": 1, "a": 2}'), "'a' occurs twice", 17),
        (safetensors_bytes(b'{"t": {"dtype": 1, "dtype": 2}}'), "'dtype' occurs twice", 27),
        (safetensors_bytes(b'{"a": ' + b"9" * 5000 + b"}"), "not acceptable JSON", 8),
        (safetensors_bytes(b'{"a": ' + b"[" * 10_000 + b"]" * 10_000 + b"}"), "JSON", 8),
        (safetensors_bytes(b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}"), "nests more than 32", 8),
        (safetensors_bytes(b"{" + b"[" * 600_000), "600001 brackets and commas", 8),
        # Entries
        (safetensors_bytes({"": one()["t"]}, bytes(16)), "has no name", 9),
        (safetensors_bytes({"t": 3}), "must be an object of", 9),
        (safetensors_bytes({"t": {"dtype": "F32", "shape": [1]}}), "must be an object of", 9),
        (safetensors_bytes({"t": one()["t"] | {"x": 1}}, bytes(16)), "must be an object of", 9),
        *(
            (safetensors_bytes(one(dtype=dtype), bytes(16)), "unknown dtype", 9)
            for dtype in ("F33", "", "f32", 7, None, ["F32"], "x" * 500)
        ),
        *(
            (safetensors_bytes(one(shape=shape), bytes(16)), "has the shape", 9)
            for shape in (
                None, 4, "4", {"4": 4}, [0], [4, 0], [-4], [4.0], ["4"], [True, 4], [None],
                [2**63], [2**64 + 4], [1] * 9, [1e308], [10**400],
            )
        ),
        *(
            (safetensors_bytes(one(offsets=offsets), bytes(16)), "data_offsets", 9)
            for offsets in (
                None, 0, [], [0], [0, 16, 32], [-16, 0], [16, 0], [0, 17], [0, 2**64 + 16],
                [0.0, 16.0], [False, 16], ["0", "16"], {"0": 16}, [0, 10**400],
            )
        ),
        # Sizes that differ, also where 64 bits would wrap around
        (safetensors_bytes(one(shape=[3]), bytes(16)), "take 12", 9),
        (safetensors_bytes(one(dtype="F16"), bytes(16)), "take 8", 9),
        (safetensors_bytes(one(dtype="F4", shape=[31]), bytes(16)), "take 15.5", 9),
        (safetensors_bytes(one(shape=[2**62 + 1, 4]), bytes(16)), "is said to take 16", 9),
        (safetensors_bytes(one(shape=[2**32, 2**32, 4]), bytes(16)), "is said to take 16", 9),
        (safetensors_bytes(one(shape=[2**63 - 1] * 8), bytes(16)), "is said to take 16", 9),
        # Tensors that overlap, or leave bytes over
        (
            safetensors_bytes({"a": entry("F32", [4], 0, 16), "b": entry("F32", [4], 12, 28)},
                              bytes(28)),
            "begins 4 bytes before", 71,
        ),
        (
            safetensors_bytes({"a": entry("F32", [4], 0, 16), "b": entry("F32", [4], 0, 16)},
                              bytes(16)),
            "begins 16 bytes before", 71,
        ),
        (safetensors_bytes(one(offsets=[4, 20]), bytes(20)), "leaves 4 bytes before it", 9),
        (safetensors_bytes(one(), bytes(20)), "4 bytes after its last", 86),
        (safetensors_bytes({}, bytes(1)), "1 bytes after its last", 10),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_hostile_header_is_refused_at_its_byte(content: bytes, message: str, offset: int) -> None:
    error = refusal(content)
    assert message in str(error)
    assert error.offset == offset
    assert len(str(error)) < 400


def test_a_header_larger_than_the_limit_is_refused(tmp_path: Path) -> None:
    path = tiny_folder(tmp_path / "m", {}) / "model.safetensors"
    path.write_bytes(struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{")
    os.truncate(path, 2**31)  # a sparse file that does hold as many bytes
    with pytest.raises(ModelFileError, match=f"at most {MAX_HEADER_BYTES}"):
        open_folder(tmp_path / "m")


@pytest.mark.parametrize("factor", [0.99, 20])  # of the values that are accepted
@pytest.mark.parametrize(
    ("item", "num_values"),
    [
        (b'"%x":[]', 2),
        (b'"%x":{}', 2),
        (b'"%x":9', 1),
        (b'"%x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}', 7),
    ],
)
def test_a_header_that_would_take_long_is_refused_soon(
    item: bytes, num_values: int, factor: float
) -> None:
    count = min(int(MAX_VALUES / num_values * factor), MAX_HEADER_BYTES // (len(item) + 5))
    text = b"{" + b",".join(item % index for index in range(count)) + b"}"
    assert len(text) < MAX_HEADER_BYTES
    content = safetensors_bytes(text, bytes(16))
    start = time.process_time()
    with pytest.raises(ModelFileError):
        parse_header(content, NOWHERE)
    assert time.process_time() - start < 4  # 1 s on an idle core


# Folders that are not whole


def test_missing_folders_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such folder"):
        open_folder(tmp_path / "absent")
    path = tiny_folder(tmp_path / "m", TENSORS)
    with pytest.raises(ModelNotFoundError, match="no such folder"):
        open_folder(path / "config.json")
    (path / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"neither model\.safetensors nor"):
        open_folder(path)
    (path / "pytorch_model.bin").touch()
    with pytest.raises(ModelFileError, match=r"but pytorch_model\.bin: convert"):
        open_folder(path)
    (path / "config.json").unlink()
    with pytest.raises(ModelFileError, match=r"has no config\.json"):
        open_folder(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "too few"),
        (b"[1]", "not an object"),
        (b"{'a': 1}", "not JSON"),
        (b'{"a": 1, "a": 1}', "occurs twice"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "' + b"x" * (4 << 20) + b'"}', "more than the 4194304"),
    ],
)
def test_a_config_must_be_an_object_of_json(tmp_path: Path, text: bytes, message: str) -> None:
    path = tiny_folder(tmp_path / "m", TENSORS)
    (path / "config.json").write_bytes(text)
    with pytest.raises(ModelFileError, match=message) as caught:
        open_folder(path)
    assert caught.value.path == path / "config.json"


def test_every_shard_must_be_there_and_hold_what_the_index_says(tmp_path: Path) -> None:
    whole = tiny_folder(tmp_path / "whole", TENSORS, num_shards=2)
    first, second = sorted(file.name for file in whole.glob("*.safetensors"))

    path = Path(shutil.copytree(whole, tmp_path / "a"))
    (path / second).unlink()
    with pytest.raises(ModelFileError, match=f"has no {second}"):
        open_folder(path)

    path = Path(shutil.copytree(whole, tmp_path / "b"))
    (path / second).write_bytes(packed_tensors({}))
    with pytest.raises(ModelFileError, match=r"no tensor 'model\.norm\.weight'") as caught:
        open_folder(path)
    assert caught.value.path == path / second

    path = Path(shutil.copytree(whole, tmp_path / "c"))
    shutil.copy(path / first, path / second)
    with pytest.raises(ModelFileError, match="does not place there"):
        open_folder(path)


@pytest.mark.parametrize(
    "shard",
    [
        "../model.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..\\x.safetensors",
        "c:x.safetensors", ".safetensors", "x\0.safetensors", "config.json", "", 3, None, ["a"],
        "x" * 400 + ".safetensors",
    ],
)  # fmt: skip
def test_a_shard_may_not_lie_elsewhere(tmp_path: Path, shard: object) -> None:
    path = tiny_folder(tmp_path / "m", TENSORS, num_shards=1)
    (path / INDEX).write_text(json.dumps({"weight_map": {"t": shard}}))
    (tmp_path / "model.safetensors").write_bytes(packed_tensors(TENSORS))
    with pytest.raises(ModelFileError, match=r"'t' in|cannot be read"):
        open_folder(path)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": ["t"]}])
def test_an_index_must_map_weights(tmp_path: Path, index: object) -> None:
    path = tiny_folder(tmp_path / "m", TENSORS, num_shards=1)
    (path / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match="has no weight_map"):
        open_folder(path)
