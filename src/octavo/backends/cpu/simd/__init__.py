"""The vector vocabulary of the kernels: 16 lanes at a time, every operation rounded as IEEE says.

A kernel is Python that Numba compiles; these are the words it may use beyond Python's own:

    f32x16, i32x16      sixteen floats, sixteen integers (the lanes of a KV block, of 16 outputs)
    i16x32, u8 x 64     the same 64 bytes as 16-bit or 8-bit numbers (i32x16 carries the bytes)
    load_*, store_*     between arrays and vectors; an index counts the array's own elements
    regs_f32(r, c)      a small matrix of vectors that LLVM keeps in registers
    fma(x, y, z)        x * y + z, rounded once
    sum_lanes(v)        one fixed tree: lanes i and i + 8, then i and i + 4, i + 2, i + 1

Knows no model and no layout.
"""

from octavo.backends.cpu.compiler import inlined, kernel
from octavo.backends.cpu.simd.arithmetic import (
    absolute,
    float_of_bits,
    fma,
    half_bits,
    keep_below,
    keep_from,
    larger,
    larger_i32,
    magnitude_bits,
    max_lanes,
    max_lanes_i32,
    power_of_two,
    round_even,
    smaller,
    splat,
    sum_lanes,
    sum_lanes_i32,
    to_f32,
    to_i32,
    zero_f32,
)
from octavo.backends.cpu.simd.functions import exp, gelu_tanh, silu
from octavo.backends.cpu.simd.memory import (
    load_bf16,
    load_codes,
    load_f16,
    load_f32,
    prefetch,
    regs_f32,
    regs_i16,
    regs_i32,
    scalar_bf16,
    scalar_f16,
    scalar_f32,
    splat_bytes,
    splat_f32,
    store_codes,
    store_f16,
    store_f32,
)
from octavo.backends.cpu.simd.vectors import F32x16, Floats, I32x16, Ints, emit

__all__ = [
    "F32x16",
    "Floats",
    "I32x16",
    "Ints",
    "absolute",
    "emit",
    "exp",
    "float_of_bits",
    "fma",
    "gelu_tanh",
    "half_bits",
    "inlined",
    "keep_below",
    "keep_from",
    "kernel",
    "larger",
    "larger_i32",
    "load_bf16",
    "load_codes",
    "load_f16",
    "load_f32",
    "magnitude_bits",
    "max_lanes",
    "max_lanes_i32",
    "power_of_two",
    "prefetch",
    "regs_f32",
    "regs_i16",
    "regs_i32",
    "round_even",
    "scalar_bf16",
    "scalar_f16",
    "scalar_f32",
    "silu",
    "smaller",
    "splat",
    "splat_bytes",
    "splat_f32",
    "store_codes",
    "store_f16",
    "store_f32",
    "sum_lanes",
    "sum_lanes_i32",
    "to_f32",
    "to_i32",
    "zero_f32",
]
