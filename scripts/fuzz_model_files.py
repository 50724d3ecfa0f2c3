"""Damage small model files at random for some minutes; report whatever escapes but `ModelError`.

    python scripts/fuzz_model_files.py --minutes 10
    python scripts/fuzz_model_files.py --cut model.gguf      a real file, cut at every kilobyte

By hand. A case that is refused on a path of its own is cut down and kept in tests/data/fuzz, which
the tests replay; the seed is printed, and gives the same cases again.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fuzz_cases import CORPUS, GGUF, corpus, exercise, json_text, keep, sound_cases
from octavo.errors import ModelError
from octavo.model.files.gguf_cursor import MAX_HEADER_BYTES
from octavo.model.files.gguf_header import parse_header

MAX_CORPUS_BYTES = 280_000
MAX_CASE_BYTES = 16_384
SLOW_SECONDS = 2.0

NUMBERS = [0, 1, 2, 7, 8, 31, 32, 255, 256, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**42 + 1]
NUMBERS += [2**62, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1]
VALUES = [
    None, True, False, 0, 1, -1, 3, 2**31, 2**63, 2**64, 10**30, 0.5, 1e308, float("nan"),
    float("inf"), "", "a", "F32", "BF16", "I64", "F4", "ü\ud800", "../x.safetensors", "\0", [], {},
    [0], [1], [4, 3], [[]], {"a": 1}, [0, 48], [48, 24], "x" * 300,
]  # fmt: skip

Case = tuple[str, bytes]


def mutate(rng: random.Random, case: Case, others: list[Case]) -> Case:
    """Return `case` with one to four kinds of damage."""
    kind, content = case
    for _ in range(rng.choice((1, 1, 2, 4))):
        if kind != GGUF and rng.random() < 0.6:
            content = _mutate_json(rng, kind, content)
        else:
            content = _mutate_bytes(rng, content, rng.choice(others)[1])
    return kind, content[:MAX_CASE_BYTES]


def _mutate_bytes(rng: random.Random, content: bytes, other: bytes) -> bytes:
    """Change bytes at random, with no regard for what they mean."""
    at = rng.randrange(len(content) + 1)
    end = min(len(content), at + rng.choice((1, 2, 4, 8, 16, 64, 512)))
    match rng.randrange(8):
        case 0:  # a bit
            return (
                content[:at]
                + bytes(b ^ 1 << rng.randrange(8) for b in content[at : at + 1])
                + (content[at + 1 :])
            )
        case 1:  # a byte
            return content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]
        case 2 | 3:  # a number that matters, in 4 or 8 bytes
            size = rng.choice((4, 8))
            number = rng.choice(NUMBERS) % (1 << 8 * size)
            return content[:at] + number.to_bytes(size, "little") + content[at + size :]
        case 4:  # some bytes less
            return content[:at] + content[end:]
        case 5:  # some bytes twice
            return content[:end] + content[at:end] * rng.choice((1, 1, 3)) + content[end:]
        case 6:  # some bytes of another file
            start = rng.randrange(len(other) + 1)
            return content[:at] + other[start : start + end - at] + content[end:]
        case _:  # the end is missing
            return content[:at]


def _mutate_json(rng: random.Random, kind: str, content: bytes) -> bytes:
    """Change a value or a key of a config, an index or a header, whose length stays true."""
    is_header = kind.endswith(".safetensors")
    size = 8 + int.from_bytes(content[:8], "little") if is_header else len(content)
    value = json_text(content[8:size] if is_header else content)
    if value is None:
        return _mutate_bytes(rng, content, content)
    text = json.dumps(_mutate_value(rng, value)).encode()
    if rng.random() < 0.1:  # something twice, a key perhaps
        at = rng.randrange(len(text))
        end = rng.randrange(at, len(text) + 1)
        text = text[:end] + b"," + text[at:end] + text[end:]
    return len(text).to_bytes(8, "little") + text + content[size:] if is_header else text


def _mutate_value(rng: random.Random, value: object) -> object:
    """Return `value` with one change somewhere inside."""
    if rng.random() < 0.1 or not isinstance(value, dict | list) or not value:
        if isinstance(value, int) and rng.random() < 0.5:
            return value + rng.choice((-1, 1, 4, 24))
        return rng.choice(VALUES)
    if isinstance(value, list):
        index = rng.randrange(len(value))
        return [*value[:index], _mutate_value(rng, value[index]), *value[index + 1 :]]
    key = rng.choice(list(value))
    rest = {name: item for name, item in value.items() if name != key}
    match rng.randrange(8):
        case 0:
            return rest
        case 1:
            return rest | {rng.choice(("", "a", "ü", "__metadata__", key + "x")): value[key]}
        case 2:
            return value | {key + "'": value[key]}
    return {name: _mutate_value(rng, v) if name == key else v for name, v in value.items()}


class Fuzzer:
    """Runs cases, and knows which paths of refusal it has seen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: set[tuple[object, ...]] = set()
        self.cases = 0
        self.refused = 0
        self.faults: set[tuple[object, ...]] = set()
        self.slowest = 0.0

    def path_of(self, case: Case) -> tuple[object, ...]:
        """Run a case and return where it was refused; report it if anything else happened."""
        self.cases += 1
        start = time.perf_counter()
        try:
            refusals = exercise(*case, self.folder)
        except Exception as error:
            fault = (type(error).__name__, *_lines(error))
            if fault not in self.faults:
                self.faults.add(fault)
                print(f"FAULT, kept as {keep(*case)}", flush=True)
                traceback.print_exc()
            return fault
        seconds = time.perf_counter() - start
        if seconds > max(SLOW_SECONDS, self.slowest):
            print(f"{seconds:.1f} s, kept as {keep(*case)}", flush=True)
        self.slowest = max(self.slowest, seconds)
        self.refused += bool(refusals)
        return (case[0], *sorted({_lines(error) for error in refusals}))

    def shrink(self, case: Case, path: tuple[object, ...]) -> Case:
        """Return the case without runs of bytes that do not matter to its path."""
        kind, content = case
        size = len(content) // 2
        while size >= 8:
            at = 0
            while at < len(content):
                shorter = content[:at] + content[at + size :]
                if self.path_of((kind, shorter)) == path:
                    content = shorter
                else:
                    at += size
            size //= 4
        return kind, content


def _lines(error: BaseException) -> tuple[object, ...]:
    """Return the last two places in Octavo that the error came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "octavo" in frame[0]]
    return tuple((Path(frame.filename).name, frame.lineno) for frame in frames[-2:])


def fuzz(minutes: float, seed: int) -> int:
    """Run for some minutes; return the number of different faults."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(Path(folder))
        pool = [*sound_cases(), *corpus()]
        for case in pool:
            fuzzer.seen.add(fuzzer.path_of(case))
        num_bytes = sum(len(content) for _, content in corpus())
        kept, end = 0, time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            case = mutate(rng, rng.choice(pool), pool)
            path = fuzzer.path_of(case)
            if path in fuzzer.seen:
                continue
            fuzzer.seen.add(path)
            pool.append(case)
            case = fuzzer.shrink(case, path)
            if num_bytes + len(case[1]) <= MAX_CORPUS_BYTES:
                keep(*case)
                kept, num_bytes = kept + 1, num_bytes + len(case[1])
    print(
        f"seed {seed}: {fuzzer.cases} cases, {fuzzer.refused} refused, {len(fuzzer.seen)} paths, "
        f"{kept} kept in {CORPUS.name} ({num_bytes} bytes in all), slowest {fuzzer.slowest:.2f} s, "
        f"{len(fuzzer.faults)} faults"
    )
    return len(fuzzer.faults)


def cut(path: Path) -> int:
    """Parse the header of a GGUF file cut at every kilobyte; return the number of faults."""
    content = path.read_bytes()[:MAX_HEADER_BYTES]
    try:
        end = parse_header(path.read_bytes(), path).data_offset
    except ModelError as error:
        print(error)
        return 1
    accepted = 0
    for length in range(0, end, 1024):
        try:
            parse_header(content[:length], path)
            accepted += 1
        except ModelError:
            pass
    print(f"{path}: cut at {end // 1024 + 1} places, {accepted} accepted")
    return accepted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--cut", type=Path, metavar="FILE")
    args = parser.parse_args()
    return min(1, cut(args.cut) if args.cut else fuzz(args.minutes, args.seed))


if __name__ == "__main__":
    sys.exit(main())
