"""Equality 6 on other instructions: the selftest's requests in a process that is compiled for them.

Compiled code belongs to a process, so every path is a child of its own:

    python -m octavo.evaluate.paths MODEL NUM_THREADS

prints, as JSON, a digest of each request's tokens and logprobs.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from octavo.backends.cpu.machine import DOT_PATH, choose_dot_path, cpu_features, cpu_name, is_x86

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from octavo.evaluate.selftest import Answer

SWITCHES: Final = ("OCTAVO_DOT", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")
"""Environment variables that choose a path; a child has those of its own alone."""

AVX2: Final = {
    "NUMBA_CPU_NAME": "x86-64-v3",
    # Without these Numba keeps the host's features, AVX-512 among them.
    "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+popcnt,+movbe",
}
GENERIC: Final = {"OCTAVO_DOT": "generic"}


@dataclass(frozen=True, slots=True)
class InstructionPath:
    """One way to compute that this machine has."""

    name: str
    switches: Mapping[str, str]


def other_paths() -> list[InstructionPath]:
    """Return the paths that this machine can take beside the one that it takes by itself."""
    paths = []
    if is_x86() and choose_dot_path(cpu_name(), cpu_features()) != "generic":
        paths.append(InstructionPath("on AVX2 (x86-64-v3)", AVX2))
    if DOT_PATH != "generic":
        paths.append(InstructionPath("with the generic dot", GENERIC))
    return paths


def digests(answers: Sequence[Answer]) -> list[str]:
    """Return a digest of each answer; equal exactly if ids and all bits of logprobs are."""
    # The repr of a float is exact.
    return [
        hashlib.blake2b(repr(answer).encode(), digest_size=16).hexdigest() for answer in answers
    ]


def run(path: InstructionPath, model: str, num_threads: int) -> list[str] | int:
    """Return the digests that a child on ``path`` prints, or its exit code if that is not 0.

    What the child has to say, that it compiles or why it failed, goes to this process's stderr.
    """
    kept = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    done = subprocess.run(
        [sys.executable, "-m", "octavo.evaluate.paths", model, str(num_threads)],
        env={**kept, **path.switches},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        return done.returncode
    found: list[str] = json.loads(done.stdout)
    return found


def main(model: str, num_threads: str) -> None:
    """Be the child."""
    from octavo.evaluate.selftest import Selftest
    from octavo.model.loader import load_model

    answers = Selftest(load_model(model), num_threads=int(num_threads)).together()
    print(json.dumps(digests(answers)))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:  # the parent's to tell
        sys.exit(130)
