"""Where the traces are: the small ones in the repository, the large ones where a user has them."""

from __future__ import annotations

import csv
import functools
import os
from pathlib import Path

import pytest

from octavo.simulate.loaders import load_trace

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/data"
SHARED = Path(os.environ.get("OCTAVO_TRACES", ROOT.parent / "shared/traces"))
CONVERSATION_400 = DATA / "mooncake_conversation_400.jsonl.gz"


def shared(name: str) -> Path:
    """Return the path of a large trace; the test is skipped where it is not."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{name} is not in {SHARED}; set OCTAVO_TRACES to the folder that has it")
    return path


def only_if_long_tests_are_wanted() -> None:
    """Skip the test that calls this unless OCTAVO_LONG_TESTS=1."""
    if os.environ.get("OCTAVO_LONG_TESTS") != "1":
        pytest.skip("it takes long: set OCTAVO_LONG_TESTS=1")


@functools.cache
def load_shared(name: str):
    return load_trace(shared(name))


def read_answers(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
