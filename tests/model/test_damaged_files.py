"""Damaged and hostile files of both formats: refused soon and by `ModelError`, never otherwise."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from fuzz_cases import KINDS, corpus, exercise, sound_cases
from octavo.errors import ModelError, ModelFileError
from octavo.model.files.gguf import GGUFFile
from octavo.model.files.gguf_header import MAX_METADATA, MAX_TENSORS, parse_header
from octavo.model.files.gguf_metadata import MAX_ARRAYS, MAX_VALUES
from octavo.model.files.safetensors import open_folder
from tiny_folder import tiny_folder
from tiny_model import ARRAY, INT8, STRING, Raw, RawTensor, gguf_bytes, packed_array, packed_string

NOWHERE = Path("x.gguf")
KILOBYTE = 1024


# Files cut short


def test_a_tiny_gguf_file_cut_at_every_kilobyte_is_refused(
    tiny_model_path: Path, tmp_path: Path
) -> None:
    content = tiny_model_path.read_bytes()
    for length in range(0, len(content), KILOBYTE):
        path = tmp_path / f"{length}.gguf"
        path.write_bytes(content[:length])
        with pytest.raises(ModelFileError):
            GGUFFile.open(path)
        path.unlink()


def test_the_real_header_cut_anywhere_is_refused(smollm2_path: Path) -> None:
    """Sixty places here; `scripts/fuzz_model_files.py --cut` does every kilobyte by hand."""
    with smollm2_path.open("rb") as file:
        content = file.read(GGUFFile.open(smollm2_path).data_offset)
    places = [*range(0, 32 * KILOBYTE, KILOBYTE), *range(0, len(content), 64 * KILOBYTE)]
    for length in places:
        with pytest.raises(ModelFileError) as caught:
            parse_header(content[:length], NOWHERE)
        assert caught.value.offset is not None
        assert caught.value.offset <= length


@pytest.mark.parametrize("num_shards", [0, 2])
def test_a_safetensors_file_cut_at_every_kilobyte_is_refused(
    tmp_path: Path, num_shards: int
) -> None:
    values = np.ones((64, 64), np.float32)
    tensors = {f"layers.{index}.weight": ("F32", values) for index in range(6)}
    folder = tiny_folder(tmp_path / "m", tensors, num_shards=num_shards)
    path = sorted(folder.glob("*.safetensors"))[-1]
    content = path.read_bytes()
    for length in [*range(0, len(content), KILOBYTE), *range(0, 300, 7), len(content) - 1]:
        path.unlink()
        path.write_bytes(content[:length])
        with pytest.raises(ModelFileError) as caught:
            open_folder(folder)
        assert caught.value.path == path


# Headers that would take long: millions of things, each of them small


EMPTY_ARRAY = packed_array(INT8, b"", 0)


def array(kind: int, payload: bytes, count: int) -> Raw:
    return Raw(ARRAY, packed_array(kind, payload, count))


def many_tensors(count: int) -> bytes:
    return gguf_bytes([], [RawTensor(f"{i}", (4,), 0, bytes(16), 0) for i in range(count)])


# Made when they are wanted: some have fifty megabytes.
HOSTILE = {
    "one array of arrays": (
        lambda: gguf_bytes([("a", array(ARRAY, EMPTY_ARRAY * 5_000_000, 5_000_000))]),
        "length of 'a' is 5000000",
    ),
    "arrays": (
        lambda: gguf_bytes([("a", array(ARRAY, EMPTY_ARRAY * 70_000, 70_000))]),
        f"array number {MAX_ARRAYS + 1}",
    ),
    "too many strings": (
        lambda: gguf_bytes([("a", array(STRING, bytes(8 << 22), 1 << 22))]),
        f"at most {MAX_VALUES}",
    ),
    "strings, the last unsound": (
        lambda: gguf_bytes(
            [("a", array(STRING, packed_string("x") * 2_000_000 + b"\xff" * 9, 2_000_001))]
        ),
        "a string in 'a'",
    ),
    "numbers": (
        lambda: gguf_bytes([(key, array(INT8, bytes(1 << 20), 1 << 20)) for key in "abc"]),
        "length of 'c' is 1048576, and at most 0",
    ),
    "keys": (
        lambda: gguf_bytes([], num_metadata=70_000) + bytes(1 << 20),
        f"at most {MAX_METADATA}",
    ),
    "too many tensors": (
        lambda: gguf_bytes([], num_tensors=70_000) + bytes(3 << 20),
        f"at most {MAX_TENSORS}",
    ),
    "overlapping tensors": (lambda: many_tensors(MAX_TENSORS), "overlap"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_header_that_would_take_long_is_refused_soon(case: str) -> None:
    make, message = HOSTILE[case]
    content = make()
    start = time.process_time()
    with pytest.raises(ModelFileError, match=message):
        parse_header(content, NOWHERE)
    assert time.process_time() - start < 4  # at most 1 s on an idle core


# Damage at random, kept from scripts/fuzz_model_files.py


def test_the_fuzzer_begins_with_sound_files(tmp_path: Path) -> None:
    for kind, content in sound_cases():
        refusals = [str(error) for error in exercise(kind, content, tmp_path)]
        assert all("general.architecture is missing" in refusal for refusal in refusals)


def test_nothing_but_model_errors_escapes_from_the_corpus(tmp_path: Path) -> None:
    cases = corpus()
    assert {kind for kind, _ in cases} == set(KINDS)
    for kind, content in cases:
        assert all(isinstance(error, ModelError) for error in exercise(kind, content, tmp_path))
