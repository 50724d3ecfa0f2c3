"""What the machine that Numba compiles for can do, and which path the byte dot takes on it.

OCTAVO_DOT=vnni, avx2 or generic overrides the path; an instruction that the machine has not ends
the process, so only tests ask for another one.
"""

from __future__ import annotations

import os
import platform
from typing import Final, Literal, cast

import llvmlite.binding as llvm

from octavo.errors import ConfigError

DotPath = Literal["vnni", "avx2", "generic"]
DOT_PATHS: Final = ("vnni", "avx2", "generic")

_AVX2_NAMES: Final = ("x86-64-v3", "x86-64-v4")


def cpu_name() -> str:
    """Return LLVM's name for the CPU that is compiled for."""
    return os.environ.get("NUMBA_CPU_NAME") or str(llvm.get_host_cpu_name())


def cpu_features() -> str:
    """Return the features that are compiled for, as LLVM writes them: ``+avx2,-avx512f``."""
    told = os.environ.get("NUMBA_CPU_FEATURES")
    if told is not None:
        return told
    if cpu_name() == "generic":
        return ""
    try:
        return str(llvm.get_host_cpu_features().flatten())
    except RuntimeError:  # LLVM does not know how to ask this CPU
        return ""


def is_x86() -> bool:
    """Whether the machine is an x86-64."""
    return platform.machine().lower() in ("x86_64", "amd64")


def choose_dot_path(name: str, features: str, wanted: str | None = None) -> DotPath:
    """Return the quickest byte dot that a CPU of this name and these features has."""
    if wanted:
        if wanted not in DOT_PATHS:
            raise ConfigError(
                f"OCTAVO_DOT is {wanted!r}; known are {', '.join(DOT_PATHS)}", param="OCTAVO_DOT"
            )
        return cast("DotPath", wanted)
    have = set(features.split(","))
    if {"+avx512f", "+avx512bw", "+avx512vnni"} <= have:
        return "vnni"
    if "+avx2" in have or name in _AVX2_NAMES:
        return "avx2"
    return "generic"


DOT_PATH: Final = choose_dot_path(cpu_name(), cpu_features(), os.environ.get("OCTAVO_DOT"))
"""The path of this process."""

HAS_AVX512: Final = "+avx512f" in cpu_features().split(",")
"""Whether a vector of sixteen floats is one register, of which there are 32."""

SWITCHES: Final = ("OCTAVO_DOT", "NUMBA_OPT")
"""Environment variables that change the generated code."""
