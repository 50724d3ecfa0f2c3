"""One result on every instruction set, and code for CPUs that this machine is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.backends.cpu.machine import DOT_PATH, choose_dot_path, is_x86
from octavo.errors import ConfigError
from octavo.evaluate.paths import AVX2, GENERIC, SWITCHES

HERE = Path(__file__).parent
PATHS = {"native": {}, "generic dot": GENERIC, "x86-64-v3": AVX2}


def run(program: list[str], switches: dict[str, str]) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    return subprocess.run(
        [sys.executable, *program],
        env={**kept, **switches},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.skipif(not is_x86(), reason="names CPUs of x86-64")
def test_every_path_gives_the_same_bits():
    results = {}
    for name, switches in PATHS.items():
        done = run([str(HERE / "path_digest.py")], switches)
        assert done.returncode == 0, done.stderr
        results[name] = json.loads(done.stdout.splitlines()[-1])
    assert results["generic dot"]["path"] == "generic"
    assert results["x86-64-v3"]["path"] == "avx2"
    native = results.pop("native")["digests"]
    for name, result in results.items():
        assert result["digests"] == native, name


CROSS = """
import numba
from octavo.backends.cpu import attention, tiles
from octavo.backends.cpu.arrays import Codes
from octavo.backends.cpu.compiler import OPTIONS
from octavo.backends.cpu.machine import DOT_PATH

def product(out, codes, scales, sums, arena, d):
    tiles.tile_u4_big(out, 0, 64, Codes(codes, scales, sums, sums, sums), 0, arena, d, 0)

def attend(q, keys, values, tables, limit, low, s, state):
    tile = attention.Tile(q, s, limit, low, state, state)
    blocks = attention.Blocks(keys, values, 0, tables, 0)
    attention.segment_many(tile, blocks, 64, 0, 512, state, 0)

floats, i64, i32 = numba.float32[::1], numba.int64[::1], numba.int32[::1]
u16, u8, i8 = numba.uint16[::1], numba.uint8[::1], numba.int8[::1]
product = numba.njit(**OPTIONS)(product)
product.compile((floats, i8, floats, floats, u8, i64))
attend = numba.njit(**OPTIONS)(attend)
attend.compile((floats, u16, u16, i32, i64, i64, floats, floats))
"""
NAMES_AND_PRINTS = """
for one in (product, attend):
    print(DOT_PATH, *list(one.inspect_asm().values()))
"""
ARM = """
import re
import llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
machine = llvm.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(
    cpu="neoverse-n1", opt=3)
for one in (product, attend):
    text = list(one.inspect_llvm().values())[0]
    text = re.sub(r'target (datalayout|triple) = .*', '', text)
    text = re.sub(r'"(target-cpu|target-features)"="[^"]*"', '', text)
    module = llvm.parse_assembly(text)
    module.triple = "aarch64-unknown-linux-gnu"
    module.data_layout = str(machine.target_data)
    print(machine.emit_assembly(module))
"""


def cross(source: str, switches: dict[str, str]) -> str:
    done = run(["-c", CROSS + source], switches)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not is_x86(), reason="compiles for another x86-64")
def test_avx512_code_uses_vnni():
    features = AVX2["NUMBA_CPU_FEATURES"] + "".join(
        f",+avx512{part}" for part in ("f", "bw", "vl", "dq", "cd", "vnni")
    )
    assembly = cross(NAMES_AND_PRINTS, {"NUMBA_CPU_NAME": "znver4", "NUMBA_CPU_FEATURES": features})
    assert assembly.startswith("vnni")
    assert (
        assembly.count("vpdpbusd") >= 64
    )  # two nibbles of two vectors for eight rows, four chunks
    assert "zmm31" in assembly  # all the registers are in use
    assert "vcvtph2ps" in assembly


@pytest.mark.skipif(not is_x86(), reason="what is compiled natively need not be cross-compiled")
def test_the_generic_path_compiles_for_aarch64():
    assembly = cross(ARM, {"OCTAVO_DOT": "generic"})
    assert "fmla" in assembly  # fused, four lanes at a time
    assert "smull" in assembly or "smlal" in assembly
    assert "fcvtl" in assembly  # half to single


def test_the_path_follows_the_features():
    assert choose_dot_path("znver4", "+avx2,+avx512f,+avx512bw,+avx512vnni") == "vnni"
    assert choose_dot_path("skylake-avx512", "+avx2,+avx512f,+avx512bw") == "avx2"
    assert choose_dot_path("x86-64-v3", "") == "avx2"
    assert choose_dot_path("neoverse-n1", "+neon") == "generic"
    assert choose_dot_path("znver4", "+avx2", "generic") == "generic"
    with pytest.raises(ConfigError, match="OCTAVO_DOT"):
        choose_dot_path("znver4", "+avx2", "sse")
    assert DOT_PATH in ("vnni", "avx2", "generic")
