"""The GGUF reader agrees with the gguf package on sound files, and refuses all others cleanly."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import ModelFileError, ModelNotFoundError
from octavo.model.files.gguf import GGMLType, GGUFFile
from octavo.model.files.gguf_cursor import MAX_HEADER_BYTES
from octavo.model.files.gguf_header import parse_header
from octavo.model.gguf_spec import spec_from_gguf
from tiny_model import (
    ARRAY,
    BOOL,
    FLOAT32,
    INT8,
    STRING,
    TYPE_NUMBERS,
    UINT32,
    UINT64,
    Raw,
    RawTensor,
    gguf_bytes,
    packed_array,
    packed_string,
    tiny_model,
)
from tiny_quants import FORMATS

F32 = TYPE_NUMBERS["F32"]
NOWHERE = Path("x.gguf")


def tensor(name: str | bytes = "t", dims=(4,), kind: int = F32, data: bytes = bytes(16), **kwargs):
    return RawTensor(name, dims, kind, data, **kwargs)


def refusal(content: bytes) -> ModelFileError:
    """Parse a file that must be refused, at a byte inside it, in little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError) as caught:
            parse_header(content, NOWHERE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 * len(content) + 200_000, f"{peak} bytes for a file of {len(content)}"
    assert caught.value.path == NOWHERE
    assert caught.value.offset is not None
    assert 0 <= caught.value.offset <= len(content)
    return caught.value


# Sound files


def assert_equals_oracle(path: Path) -> None:
    """Compare all metadata and all tensors with the gguf package's reader."""
    file = GGUFFile.open(path)
    reader = gguf.GGUFReader(path)
    expected = {
        name: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.")
    }
    assert file.metadata == expected
    assert list(file.metadata) == list(expected)
    assert {key: type(value) for key, value in file.metadata.items()} == {
        key: type(value) for key, value in expected.items()
    }
    assert (file.alignment, file.data_offset) == (reader.alignment, reader.data_offset)
    assert list(file.tensors) == [found.name for found in reader.tensors]
    for found in reader.tensors:
        mine = file.tensors[found.name]
        assert mine.type.name == found.tensor_type.name
        assert mine.shape == tuple(int(dim) for dim in found.shape)[::-1]
        assert (mine.offset, mine.num_bytes) == (found.data_offset, found.n_bytes)
        assert mine.num_elements == found.n_elements
        np.testing.assert_array_equal(mine.data, found.data.reshape(-1).view(np.uint8))


def test_the_real_file_equals_the_oracle(smollm2_path: Path) -> None:
    assert_equals_oracle(smollm2_path)


def test_the_real_file_is_what_the_notes_say(smollm2_path: Path) -> None:
    file = GGUFFile.open(smollm2_path)
    assert (file.version, file.alignment, file.data_offset) == (3, 32, 1_785_664)
    assert (file.size, len(file.tensors), len(file.metadata)) == (98_362_432, 272, 33)
    assert file.tensors["token_embd.weight"].shape == (49_152, 576)
    assert sum(found.num_bytes for found in file.tensors.values()) == 96_576_768
    file.require_supported()


def test_the_real_file_opens_fast(smollm2_path: Path) -> None:
    def seconds() -> float:
        start = time.process_time()
        GGUFFile.open(smollm2_path)
        return time.process_time() - start

    assert min(seconds() for _ in range(3)) < 0.6  # 0.1 s on an idle core


@pytest.mark.parametrize("tensor_type", FORMATS)
def test_tiny_files_equal_the_oracle(tmp_path: Path, tensor_type: str) -> None:
    size = FORMATS[tensor_type].elements  # rows must be whole blocks
    path = tiny_model(
        tmp_path / "m.gguf",
        num_layers=1,
        hidden_size=max(64, size),
        intermediate_size=max(128, size),
        tensor_type=tensor_type,
        tied=False,
    )
    assert_equals_oracle(path)
    file = GGUFFile.open(path)
    file.require_supported()
    assert file.tensors["blk.0.ffn_up.weight"].type.name == tensor_type


def test_every_type_of_value_is_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65_535)
    writer.add_int16("i16", -32_768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.1)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "naïve ✓")
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("floats", [0.5, 1.5])
    writer.add_array("bools", [True, False])
    writer.add_array("texts", ["a", "", "ü"])
    writer.add_array("nested", [[1, 2], [3]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = GGUFFile.open(tmp_path / "m.gguf").metadata
    assert metadata["u64"] == 2**64 - 1
    assert metadata["i64"] == -(2**63)
    assert metadata["f32"] == float(np.float32(0.1))
    assert metadata["f64"] == 0.1
    assert metadata["yes"] is True
    assert metadata["bools"] == [True, False]
    assert metadata["texts"] == ["a", "", "ü"]
    assert metadata["nested"] == [[1, 2], [3]]
    assert [metadata[key] for key in ("u8", "i8", "u16", "i16", "u32", "i32")] == [
        255, -128, 65_535, -32_768, 2**32 - 1, -(2**31),
    ]  # fmt: skip


def test_version_2_empty_arrays_and_own_alignment() -> None:
    metadata = [
        ("general.alignment", 64),
        ("empty", []),
        ("none", Raw(ARRAY, packed_array(0, b"", 0))),
    ]
    tensors = [tensor("a"), tensor("b", (2, 2))]
    header = parse_header(gguf_bytes(metadata, tensors, version=2, alignment=64), NOWHERE)
    assert (header.version, header.alignment) == (2, 64)
    assert (header.metadata["empty"], header.metadata["none"]) == ([], [])
    assert [info.offset - header.data_offset for info in header.tensors] == [0, 64]


def test_a_file_without_tensors_may_end_with_its_header() -> None:
    assert parse_header(gguf_bytes([("a", 1)])[: 24 + 8 + 1 + 4 + 4], NOWHERE).tensors == []


def test_strings_keep_bytes_that_are_no_utf8() -> None:
    content = b"\xff\xfe ok \x80"
    value = parse_header(gguf_bytes([("text", content)]), NOWHERE).metadata["text"]
    assert isinstance(value, str)
    assert value.encode("utf-8", "surrogateescape") == content


def test_views_outlive_the_file_and_cannot_be_written(tiny_model_path: Path) -> None:
    view = GGUFFile.open(tiny_model_path).tensors["output_norm.weight"].data
    assert view.view("<f4").shape == (64,)
    assert not view.flags.writeable
    assert not view.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


# The fingerprint


def test_the_fingerprint_is_of_the_content_alone(tiny_model_path: Path, tmp_path: Path) -> None:
    copy = shutil.copy(tiny_model_path, tmp_path / "copy.gguf")
    fingerprint = GGUFFile.open(tiny_model_path).fingerprint
    assert len(fingerprint) == 16
    assert fingerprint == GGUFFile.open(copy).fingerprint
    other = tiny_model(tmp_path / "other.gguf", seed=1)
    assert fingerprint != GGUFFile.open(other).fingerprint


def test_the_fingerprint_is_the_same_on_every_machine(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes([("a", 1)], [tensor("t", (4,), data=bytes(range(16)))]))
    assert GGUFFile.open(path).fingerprint.hex() == "bb5bbfb0f20db3cbdeb4109e38ae9221"


def test_the_fingerprint_sees_header_weights_and_size(tmp_path: Path) -> None:
    data = bytes(8192)
    contents = {
        "as it is": gguf_bytes([("a", 1)], [tensor("t", (2048,), data=data)]),
        "metadata": gguf_bytes([("a", 2)], [tensor("t", (2048,), data=data)]),
        "name": gguf_bytes([("a", 1)], [tensor("u", (2048,), data=data)]),
        "a weight": gguf_bytes([("a", 1)], [tensor("t", (2048,), data=b"\1" + data[1:])]),
        "size": gguf_bytes([("a", 1)], [tensor("t", (2048,), data=data + bytes(32))]),
    }
    fingerprints = set()
    for content in contents.values():
        path = tmp_path / "m.gguf"
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        fingerprints.add(GGUFFile.open(path).fingerprint)
    assert len(fingerprints) == len(contents)


# Types that cannot be run


def test_a_known_type_that_is_not_supported_opens_but_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    tq1_0 = tensor("blk.0.ffn_up.weight", (256, 3), GGMLType.TQ1_0, bytes(3 * 54))
    path.write_bytes(gguf_bytes([], [tensor("good"), tq1_0]))
    file = GGUFFile.open(path)
    assert file.tensors["blk.0.ffn_up.weight"].type.name == "TQ1_0"
    assert file.tensors["blk.0.ffn_up.weight"].num_bytes == 3 * 54
    for refused in (file.require_supported, file.tensors["blk.0.ffn_up.weight"].dequantize):
        with pytest.raises(ModelFileError, match=r"blk\.0\.ffn_up\.weight") as caught:
            refused()
        assert "TQ1_0" in str(caught.value)
        assert "Q8_0" in str(caught.value)
        assert caught.value.path == path


# Files that cannot be read


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file"):
        GGUFFile.open(tmp_path / "absent.gguf")


def test_a_directory_an_empty_file_and_a_pipe_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="directory"):
        GGUFFile.open(tmp_path)
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ModelFileError, match="0 bytes"):
        GGUFFile.open(tmp_path / "empty.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match="regular"):
        GGUFFile.open(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match="cannot be read"):
        GGUFFile.open("a\0b.gguf")


def test_a_file_without_permission_is_refused(
    tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid(*args: object) -> int:  # root may read everything, so a mode would not do
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", forbid)
    with pytest.raises(ModelFileError, match="cannot be read: Permission denied"):
        GGUFFile.open(tiny_model_path)


# Hostile headers


@pytest.mark.parametrize(
    ("content", "message", "offset"),
    [
        (gguf_bytes([], magic=b"GGML"), "not a GGUF file", 0),
        (b"PK\3\4" + bytes(60), "not a GGUF file", 0),
        (gguf_bytes([], version=1), "version 1", 4),
        (gguf_bytes([], version=0), "version 0", 4),
        (gguf_bytes([], version=4), "version 4", 4),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian", 4),
        # Counts and lengths that the file cannot hold
        (gguf_bytes([], num_tensors=2**64 - 1), "tensor count", 8),
        (gguf_bytes([("a", 1)], num_metadata=2**63), "metadata count", 16),
        (gguf_bytes([("a", 1)], num_metadata=2), "metadata key of 0 bytes", 41),
        (gguf_bytes([("a", Raw(STRING, struct.pack("<Q", 2**30)))]), "string in 'a'", 37),
        (gguf_bytes([("a", Raw(STRING, struct.pack("<Q", 2**64 - 8)))]), "string in 'a'", 37),
        (gguf_bytes([("a", Raw(ARRAY, packed_array(INT8, b"", 2**40)))]), "length of 'a'", 41),
        (gguf_bytes([("a", Raw(ARRAY, packed_array(UINT64, b"", 2**61)))]), "length of 'a'", 41),
        (gguf_bytes([("a", Raw(ARRAY, packed_array(STRING, b"", 2**64 - 1)))]), "length of", 41),
        (gguf_bytes([("a", Raw(ARRAY, packed_array(ARRAY, b"", 2**62)))]), "length of 'a'", 41),
        (gguf_bytes([("a", Raw(ARRAY, packed_array(STRING, b"\xff" * 24, 3)))]), "string in", 49),
        # Keys
        (gguf_bytes([("", 1)]), "metadata key of 0 bytes", 24),
        (gguf_bytes([("k" * 65_536, 1)]), "metadata key of 65536 bytes", 24),
        (gguf_bytes([(b"a\xff", 1)]), "not UTF-8", 33),
        (gguf_bytes([("a", 1), ("a", 2)]), "'a' occurs twice", 41),
        # Values
        (gguf_bytes([("a", Raw(13, bytes(8)))]), "unknown value type 13", 33),
        (gguf_bytes([("a", Raw(2**32 - 1, bytes(8)))]), "unknown value type", 33),
        (gguf_bytes([("a", Raw(ARRAY, packed_array(99, b"", 0)))]), "unknown value type 99", 37),
        (gguf_bytes([("a", Raw(BOOL, b"\2"))]), "truth value of 2", 37),
        (gguf_bytes([("a", Raw(ARRAY, packed_array(BOOL, b"\0\1\xff", 3)))]), "of 255", 51),
        # Alignment
        *(
            (gguf_bytes([("general.alignment", value)]), "general.alignment is", 53)
            for value in (
                0, 1, 24, 2**30, Raw(UINT64, struct.pack("<Q", 2**63)), -1.0, True,
                "32", Raw(FLOAT32, struct.pack("<f", 32.0)), [32],
            )
        ),
        # Tensors
        (gguf_bytes([], [tensor("")]), "tensor name of 0 bytes", 24),
        (gguf_bytes([], [tensor(b"\xc3")]), "not UTF-8", 32),
        (gguf_bytes([], [tensor("a"), tensor("a")]), "'a' occurs twice", 57),
        (gguf_bytes([], [tensor(dims=())]), "0 dimensions", 33),
        (gguf_bytes([], [tensor(dims=(1, 1, 1, 1, 1))]), "5 dimensions", 33),
        (gguf_bytes([], [tensor(dims=(0,))]), "dimension of 0", 33),
        (gguf_bytes([], [tensor(dims=(4, 0))]), "dimension of 0", 33),
        (gguf_bytes([], [tensor(kind=4)]), "Q4_2", 45),
        (gguf_bytes([], [tensor(kind=31)]), "Q4_0_4_4", 45),
        (gguf_bytes([], [tensor(kind=1000)]), "unknown type 1000", 45),
        (gguf_bytes([], [tensor(dims=(48,), kind=TYPE_NUMBERS["Q4_0"])]), "multiple of the 32", 33),
        (gguf_bytes([], [tensor(dims=(576,), kind=GGMLType.Q4_K)]), "multiple of the 256", 33),
        (gguf_bytes([], [tensor(offset=8)]), "multiple of the alignment", 49),
        (gguf_bytes([], [tensor(offset=2**63)]), "ends after the file", 49),
        (gguf_bytes([], [tensor(offset=2**64 - 32)]), "ends after the file", 49),
        (gguf_bytes([], [tensor(dims=(5,))]), "ends after the file", 49),
        (gguf_bytes([], [tensor("a"), tensor("b", offset=0)]), "overlap", 96),
        # Products that wrap around 2**64 to something small
        (gguf_bytes([], [tensor(dims=(2**42 + 1, 2**22))]), "ends after the file", 57),
        (gguf_bytes([], [tensor(dims=(2**32, 2**32))]), "ends after the file", 57),
        (gguf_bytes([], [tensor(dims=(2**16,) * 4)]), "ends after the file", 73),
        (gguf_bytes([], [tensor(dims=(2**62,))]), "ends after the file", 49),
        (gguf_bytes([], [tensor(dims=(2**64 - 1,) * 4)]), "ends after the file", 73),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_hostile_header_is_refused_at_its_byte(content: bytes, message: str, offset: int) -> None:
    error = refusal(content)
    assert message in str(error)
    assert error.offset == offset


def test_arrays_nest_only_so_deep() -> None:
    def nested(depth: int) -> Raw:
        payload, kind, count = b"", UINT32, 0
        for _ in range(depth):
            payload, kind, count = packed_array(kind, payload, count), ARRAY, 1
        return Raw(ARRAY, payload)

    assert parse_header(gguf_bytes([("a", nested(4))]), NOWHERE).metadata["a"] == [[[[]]]]
    assert "nests arrays" in str(refusal(gguf_bytes([("a", nested(5))])))
    assert "nests arrays" in str(refusal(gguf_bytes([("a", nested(10_000))])))


def test_a_header_larger_than_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes([("a", Raw(ARRAY, packed_array(INT8, b"", 2**30)))]))
    os.truncate(path, 2**31)  # a sparse file that does hold as many bytes
    with pytest.raises(ModelFileError, match="length of 'a'") as caught:
        GGUFFile.open(path)
    assert str(MAX_HEADER_BYTES - 49) in str(caught.value)


# Damage anywhere


def small_file() -> bytes:
    metadata = [
        ("general.alignment", 32),
        ("s", "text"),
        ("f", 1.5),
        ("b", True),
        ("strings", ["a", "bc", "def"]),
        ("ints", [1, 2, 3]),
        ("bools", Raw(ARRAY, packed_array(BOOL, b"\0\1", 2))),
        ("nested", Raw(ARRAY, packed_array(ARRAY, packed_array(STRING, packed_string("x"), 1), 1))),
    ]
    tensors = [
        tensor("a"),
        tensor("b.weight", (32, 2), TYPE_NUMBERS["Q8_0"], bytes(68)),
        tensor("c", (2, 2, 2), TYPE_NUMBERS["F16"], bytes(16)),
    ]
    return gguf_bytes(metadata, tensors)


SMALL = small_file()
SMALL_HEADER = parse_header(SMALL, NOWHERE).data_offset


def test_a_file_cut_anywhere_is_refused() -> None:
    for length in range(len(SMALL)):
        refusal(SMALL[:length])


@settings(deadline=None)
@given(st.data())
def test_a_tiny_model_cut_anywhere_is_refused(
    tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = tiny_model_path.read_bytes()
    length = data.draw(st.integers(0, len(content) - 1))
    path = tmp_path_factory.mktemp("cut") / "m.gguf"
    path.write_bytes(content[:length])
    with pytest.raises(ModelFileError):
        GGUFFile.open(path)


def parse_or_refuse(content: bytes) -> None:
    """Parse bytes that may be damaged: a sound header or `ModelFileError`, in bounded memory."""
    tracemalloc.start()
    try:
        header = parse_header(content, NOWHERE)
        for info in header.tensors:
            assert info.offset + info.num_bytes <= len(content)
    except ModelFileError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 32 * len(content) + 200_000


@pytest.mark.parametrize("value", [0x00, 0x01, 0x7F, 0x80, 0xFF])
def test_any_byte_of_a_header_may_be_replaced(value: int) -> None:
    for index in range(SMALL_HEADER):
        parse_or_refuse(SMALL[:index] + bytes([value]) + SMALL[index + 1 :])


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.integers(0, SMALL_HEADER - 1), st.integers(0, 255)), max_size=8))
def test_any_bytes_of_a_header_may_be_replaced(changes: list[tuple[int, int]]) -> None:
    content = bytearray(SMALL)
    for index, value in changes:
        content[index] = value
    parse_or_refuse(bytes(content))


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_damaged_tiny_model_is_opened_or_refused(
    tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(tiny_model_path.read_bytes())
    end = GGUFFile.open(tiny_model_path).data_offset
    content[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "m.gguf"
    path.write_bytes(content)
    with contextlib.suppress(ModelFileError):
        file = GGUFFile.open(path)
        file.require_supported()
        spec_from_gguf(file)
        for found in file.tensors.values():
            assert found.dequantize().shape == found.shape


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_random_bytes_after_the_version_are_refused_or_read(tail: bytes) -> None:
    parse_or_refuse(b"GGUF" + struct.pack("<I", 3) + tail)
