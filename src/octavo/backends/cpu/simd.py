"""The vector vocabulary of the kernels: 16 lanes at a time, every operation rounded as IEEE says.

A kernel is Python that Numba compiles; these are the words it may use beyond Python's own:

    f32x16, i32x16      sixteen floats, sixteen integers (the lanes of a KV block, of 16 outputs)
    i16x32, u8 x 64     the same 64 bytes as 16-bit or 8-bit numbers (i32x16 carries the bytes)
    load_*, store_*     between arrays and vectors; an index counts the array's own elements
    regs_f32(r, c)      a small matrix of vectors that LLVM keeps in registers
    fma(x, y, z)        x * y + z, rounded once
    sum_lanes(v)        one fixed tree: lanes i and i + 8, then i and i + 4, i + 2, i + 1

LLVM legalises `<16 x float>` to one AVX-512 register, two of AVX2 or four of NEON; the bits are the
same. Nothing here lets the compiler reorder or contract arithmetic. A vector cannot be returned to
Python: tests go through arrays. Knows no model and no layout.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from octavo.backends.cpu.compiler import inlined, kernel

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["inlined", "kernel"]

F32x16: TypeAlias = Any
"""In annotations: sixteen float32, inside a kernel."""
I32x16: TypeAlias = Any
"""In annotations: sixteen int32, or 64 bytes of codes."""
Floats: TypeAlias = Any
"""In annotations: a contiguous float32 array."""
Ints: TypeAlias = Any
"""In annotations: a contiguous array of integers (codes, halves, indices)."""

# -- types ----------------------------------------------------------------------------------------

_I1, _I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
_ELEMENTS = {"f64": ir.DoubleType(), "f32": ir.FloatType(), "i32": _I32, "i16": _I16}


class Vec(types.Type):
    """A vector of ``lanes`` elements, held in registers."""

    def __init__(self, element: str, lanes: int) -> None:
        self.element = element
        self.lanes = lanes
        super().__init__(name=f"{element}x{lanes}")

    @property
    def ir(self) -> Any:
        """Its LLVM type."""
        return ir.VectorType(_ELEMENTS[self.element], self.lanes)


class Regs(types.Type):
    """``rows`` x ``columns`` vectors: memory that LLVM turns into registers, indices constant."""

    def __init__(self, vec: Vec, rows: int, columns: int) -> None:
        self.vec = vec
        self.rows = rows
        self.columns = columns
        super().__init__(name=f"Regs({vec.name},{rows},{columns})")


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vec: Vec) -> None:
        super().__init__(manager, vec, vec.ir)


@register_model(Regs)
class _RegsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, regs: Regs) -> None:
        super().__init__(manager, regs, regs.vec.ir.as_pointer())


f32x16, i32x16, i16x32 = Vec("f32", 16), Vec("i32", 16), Vec("i16", 32)

HALVES = ir.VectorType(ir.HalfType(), 16)
WORDS = ir.VectorType(_I16, 16)
BYTES = ir.VectorType(_I8, 16)

# -- how an operation is defined ------------------------------------------------------------------


def emit(result: Any, *params: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorate ``generate(builder, *values)`` to be an intrinsic of this fixed signature."""

    def decorate(generate: Callable[..., Any]) -> Any:
        def code(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            return generate(builder, *values)

        answer = (result(*params), code)
        typed: dict[int, Callable[..., Any]] = {
            0: lambda _typing: answer,
            1: lambda _typing, _a: answer,
            2: lambda _typing, _a, _b: answer,
            3: lambda _typing, _a, _b, _c: answer,
        }
        function = typed[len(params)]
        function.__name__ = function.__qualname__ = generate.__name__
        function.__doc__ = generate.__doc__
        return intrinsic(function)

    return decorate


def call(builder: Any, name: str, result: Any, *values: Any) -> Any:
    """Call the LLVM intrinsic or C function ``name``."""
    kind = ir.FunctionType(result, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), list(values))


def constant(kind: Any, value: Any) -> Any:
    """Return an LLVM vector of type ``kind`` with ``value`` in every lane."""
    return ir.Constant(kind, [value] * kind.count)


def splat_ir(builder: Any, value: Any, kind: Any) -> Any:
    """Return ``value`` in every lane of an LLVM vector of type ``kind``."""
    nothing = ir.Constant(kind, ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(one, nothing, constant(ir.VectorType(_I32, kind.count), 0))


def lanes_ir(builder: Any, vector: Any, order: list[int]) -> Any:
    """Return the lanes of ``vector`` named by ``order``."""
    nothing = ir.Constant(vector.type, ir.Undefined)
    return builder.shuffle_vector(
        vector, nothing, ir.Constant(ir.VectorType(_I32, len(order)), order)
    )


def half_ir(builder: Any, vector: Any, index: int) -> Any:
    """Return the lower (0) or upper (1) half of a vector."""
    size = vector.type.count // 2
    return lanes_ir(builder, vector, list(range(index * size, (index + 1) * size)))


def join_ir(builder: Any, low: Any, high: Any) -> Any:
    """Return the vector whose halves are ``low`` and ``high``."""
    size = 2 * low.type.count
    return builder.shuffle_vector(
        low, high, ir.Constant(ir.VectorType(_I32, size), list(range(size)))
    )


def tree_ir(builder: Any, vector: Any, join: Callable[[Any, Any], Any]) -> Any:
    """Return the lanes joined into one number: upper half onto lower half until one is left."""
    while vector.type.count > 1:
        vector = join(half_ir(builder, vector, 0), half_ir(builder, vector, 1))
    return builder.extract_element(vector, ir.Constant(_I32, 0))


# -- memory ---------------------------------------------------------------------------------------


def _pointer(context: Any, builder: Any, kind: Any, array: Any, index: Any, target: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), target.as_pointer())


def _loader(result: Any, memory: Any, align: int, finish: Callable[[Any, Any], Any]) -> Any:
    """Return an intrinsic ``(array, index)`` that reads ``memory`` there and finishes it."""

    @intrinsic
    def load(typingctx, array, index):  # noqa: ARG001
        def code(context, builder, signature, values):
            pointer = _pointer(context, builder, signature.args[0], values[0], values[1], memory)
            return finish(builder, builder.load(pointer, align=align))

        return result(array, types.intp), code

    return load


def _storer(align: int, memory: Any, prepare: Callable[[Any, Any], Any]) -> Any:
    """Return an intrinsic ``(array, index, vector)`` that writes there."""

    @intrinsic
    def store(typingctx, array, index, vector):  # noqa: ARG001
        def code(context, builder, signature, values):
            pointer = _pointer(context, builder, signature.args[0], values[0], values[1], memory)
            builder.store(prepare(builder, values[2]), pointer, align=align)
            return context.get_dummy_value()

        return types.void(array, types.intp, vector), code

    return store


load_f32 = _loader(f32x16, f32x16.ir, 4, lambda _, v: v)
load_i32 = _loader(i32x16, i32x16.ir, 4, lambda _, v: v)
load_codes = _loader(i32x16, i32x16.ir, 32, lambda _, v: v)
"""64 bytes of weights; their address is a multiple of 32."""
load_f16 = _loader(f32x16, HALVES, 2, lambda b, v: b.fpext(v, f32x16.ir))
load_bf16 = _loader(
    f32x16,
    WORDS,
    2,
    lambda b, v: b.bitcast(b.shl(b.zext(v, i32x16.ir), constant(i32x16.ir, 16)), f32x16.ir),
)
splat_f32 = _loader(f32x16, ir.FloatType(), 4, lambda b, v: splat_ir(b, v, f32x16.ir))
"""One float of an array, in every lane."""
splat_bytes = _loader(i32x16, _I32, 4, lambda b, v: splat_ir(b, v, i32x16.ir))
"""Four consecutive bytes of an int8 array, in every lane."""

scalar_f16 = _loader(types.float32, ir.HalfType(), 2, lambda b, v: b.fpext(v, ir.FloatType()))
"""One float16 at a byte offset of a uint8 array, or an index of a uint16 array."""
scalar_f32 = _loader(types.float32, ir.FloatType(), 4, lambda _, v: v)
scalar_bf16 = _loader(
    types.float32,
    _I16,
    2,
    lambda b, v: b.bitcast(b.shl(b.zext(v, _I32), ir.Constant(_I32, 16)), ir.FloatType()),
)

store_f32 = _storer(4, f32x16.ir, lambda _, v: v)
store_f16 = _storer(2, HALVES, lambda b, v: b.fptrunc(v, HALVES))
"""Rounded to nearest, ties to even; clamp first (`clamp_stored`)."""
store_codes = _storer(1, BYTES, lambda b, v: b.trunc(v, BYTES))
"""Sixteen int32 within -128 .. 127 (or 0 .. 255) as bytes."""

# -- arithmetic -----------------------------------------------------------------------------------


@emit(f32x16, types.float32)
def splat(builder, x):
    """``x`` in every lane."""
    return splat_ir(builder, x, f32x16.ir)


@emit(f32x16)
def zero_f32(_builder):
    """Sixteen zeros."""
    return constant(f32x16.ir, 0.0)


@emit(f32x16, f32x16, f32x16, f32x16)
def fma(builder, x, y, z):
    """x * y + z, rounded once."""
    return call(builder, "llvm.fma.v16f32", f32x16.ir, x, y, z)


@emit(f32x16, f32x16)
def absolute(builder, x):
    """|x|."""
    return call(builder, "llvm.fabs.v16f32", f32x16.ir, x)


@emit(f32x16, f32x16)
def round_even(builder, x):
    """The nearest whole number, ties to even."""
    return call(builder, "llvm.roundeven.v16f32", f32x16.ir, x)


@emit(f32x16, f32x16, f32x16)
def larger(builder, x, y):
    """x where x > y, else y: a NaN in x gives y, a NaN in y stays."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


@emit(f32x16, f32x16, f32x16)
def smaller(builder, x, y):
    """x where x < y, else y: a NaN in x gives y, a NaN in y stays."""
    return builder.select(builder.fcmp_ordered("<", x, y), x, y)


@emit(i32x16, f32x16)
def to_i32(builder, x):
    """Towards zero; x must be finite and in range."""
    return builder.fptosi(x, i32x16.ir)


@emit(f32x16, i32x16)
def to_f32(builder, x):
    """Rounded to nearest."""
    return builder.sitofp(x, f32x16.ir)


@emit(i32x16, f32x16)
def magnitude_bits(builder, x):
    """The bit pattern of |x| as an integer: it orders as |x| does, Inf above all, NaN above Inf."""
    bits = builder.bitcast(x, i32x16.ir)
    return builder.and_(bits, constant(i32x16.ir, 0x7FFFFFFF))


@emit(i32x16, i32x16, i32x16)
def larger_i32(builder, x, y):
    """The larger of two integers."""
    return builder.select(builder.icmp_signed(">", x, y), x, y)


@emit(f32x16, f32x16)
def power_of_two(builder, n_plus_magic):
    """2^n from n + 1.5 * 2^23, whose low bits are n; n within -126 .. 127 (NaN: any number)."""
    bits = builder.bitcast(n_plus_magic, i32x16.ir)
    exponent = builder.add(bits, constant(i32x16.ir, 127))
    return builder.bitcast(builder.shl(exponent, constant(i32x16.ir, 23)), f32x16.ir)


@emit(f32x16, f32x16, types.int32, types.float32)
def _keep_below(builder, v, count, other):
    lanes = ir.Constant(i32x16.ir, list(range(16)))
    kept = builder.icmp_signed("<", lanes, splat_ir(builder, count, i32x16.ir))
    return builder.select(kept, v, splat_ir(builder, other, f32x16.ir))


@emit(f32x16, f32x16, types.int32, types.float32)
def _keep_from(builder, v, first, other):
    lanes = ir.Constant(i32x16.ir, list(range(16)))
    kept = builder.icmp_signed(">=", lanes, splat_ir(builder, first, i32x16.ir))
    return builder.select(kept, v, splat_ir(builder, other, f32x16.ir))


@inlined
def keep_below(v: F32x16, count: int, other: np.float32) -> F32x16:
    """``v`` in the lanes below ``count``, ``other`` in the rest, whatever ``v`` holds there."""
    return _keep_below(v, np.int32(count), other)


@inlined
def keep_from(v: F32x16, first: int, other: np.float32) -> F32x16:
    """``v`` in the lanes from ``first`` on, ``other`` in the rest, whatever ``v`` holds there."""
    return _keep_from(v, np.int32(first), other)


@emit(types.float32, f32x16)
def sum_lanes(builder, v):
    """The sum of the lanes by one tree: upper half onto lower half, four times."""
    return tree_ir(builder, v, builder.fadd)


@emit(types.float32, f32x16)
def max_lanes(builder, v):
    """The largest lane."""
    return tree_ir(builder, v, lambda x, y: builder.select(builder.fcmp_ordered(">", x, y), x, y))


@emit(types.int32, i32x16)
def sum_lanes_i32(builder, v):
    """The sum of the lanes."""
    return tree_ir(builder, v, builder.add)


@emit(types.int32, i32x16)
def max_lanes_i32(builder, v):
    """The largest lane."""
    return tree_ir(builder, v, lambda x, y: builder.select(builder.icmp_signed(">", x, y), x, y))


@emit(types.float32, types.int32)
def float_of_bits(builder, bits):
    """The float32 of this bit pattern."""
    return builder.bitcast(bits, ir.FloatType())


@emit(types.uint16, types.float32)
def half_bits(builder, x):
    """The bits of x as a float16, rounded to nearest, ties to even."""
    return builder.bitcast(builder.fptrunc(x, ir.HalfType()), _I16)


@emit(types.float32, types.float32, types.float32, types.float32)
def fma_scalar(builder, x, y, z):
    """x * y + z, rounded once."""
    return call(builder, "llvm.fma.f32", ir.FloatType(), x, y, z)


def _operator(python: Any, float_name: str, int_name: str | None) -> None:
    """Let two vectors of one type be combined by a Python operator.

    A template and a lowering, not an overload: Numba compiles an overload as a function of its own.
    """

    @infer_global(python)
    class _Template(AbstractTemplate):
        def generic(self, args: Any, _kws: Any) -> Any:
            if len(args) == 2 and isinstance(args[0], Vec) and args[0] == args[1]:
                return signature(args[0], *args)
            return None

    @lower_builtin(python, Vec, Vec)
    def _lower(_context, builder, kind, values):
        name = int_name if kind.return_type.element[0] == "i" and int_name else float_name
        return getattr(builder, name)(*values)


_operator(operator.add, "fadd", "add")
_operator(operator.sub, "fsub", "sub")
_operator(operator.mul, "fmul", "mul")
_operator(operator.truediv, "fdiv", None)

# -- registers ------------------------------------------------------------------------------------


def make_regs(vec: Vec) -> Any:
    """Return ``regs(rows, columns)``, literal numbers: that many vectors, all zero."""

    @intrinsic(prefer_literal=True)
    def regs(typingctx, rows, columns):  # noqa: ARG001
        kind = Regs(vec, rows.literal_value, columns.literal_value)

        def code(_context, builder, _signature, _values):
            count = kind.rows * kind.columns
            with builder.goto_entry_block():
                pointer = builder.alloca(vec.ir, size=ir.Constant(_I32, count))
            zero = constant(vec.ir, 0.0 if vec.element == "f32" else 0)
            for i in range(count):
                builder.store(zero, builder.gep(pointer, [ir.Constant(_I64, i)]))
            return pointer

        return kind(rows, columns), code

    return regs


regs_f32, regs_i32, regs_i16 = (make_regs(vec) for vec in (f32x16, i32x16, i16x32))


def _place(context: Any, builder: Any, kind: Regs, index_type: Any, pointer: Any, at: Any) -> Any:
    row, column = (
        context.cast(builder, value, source, types.intp)
        for value, source in zip(cgutils.unpack_tuple(builder, at), index_type, strict=True)
    )
    index = builder.add(builder.mul(row, ir.Constant(_I64, kind.columns)), column)
    return builder.gep(pointer, [index])


@infer_global(operator.getitem)
class _GetTemplate(AbstractTemplate):
    def generic(self, args: Any, _kws: Any) -> Any:
        regs, index = args
        return signature(regs.vec, regs, index) if isinstance(regs, Regs) else None


@infer_global(operator.setitem)
class _SetTemplate(AbstractTemplate):
    def generic(self, args: Any, _kws: Any) -> Any:
        regs, index, _ = args
        return signature(types.void, regs, index, regs.vec) if isinstance(regs, Regs) else None


@lower_builtin(operator.getitem, Regs, types.BaseTuple)
def _get(context, builder, kind, values):
    return builder.load(_place(context, builder, *kind.args[:2], *values[:2]))


@lower_builtin(operator.setitem, Regs, types.BaseTuple, Vec)
def _set(context, builder, kind, values):
    builder.store(values[2], _place(context, builder, *kind.args[:2], *values[:2]))
    return context.get_dummy_value()


# -- functions ------------------------------------------------------------------------------------

_LOG2_E = np.float32(1.44269504)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_EXP_LOW, _EXP_HIGH = np.float32(-87.33654), np.float32(88.0)
_MAGIC = np.float32(1.5 * 2**23)
_C6, _C5, _C4 = (
    np.float32(1.9875691500e-4),
    np.float32(1.3981999507e-3),
    np.float32(8.3334519073e-3),
)
_C3, _C2, _C1 = (
    np.float32(4.1665795894e-2),
    np.float32(1.6666665459e-1),
    np.float32(5.0000001201e-1),
)
_ONE, _ZERO = np.float32(1), np.float32(0)


@inlined
def exp(x: F32x16) -> F32x16:
    """e^x within 1.01 ulp; exp(0) = 1 exactly; NaN stays NaN.

    x is held within [-87.34, 88]; n = round(x / ln 2); r = x - n ln 2 in two steps; a polynomial
    of degree 7 (Cephes' coefficients) for e^r; times 2^n.
    """
    x = smaller(splat(_EXP_HIGH), larger(splat(_EXP_LOW), x))
    shifted = fma(x, splat(_LOG2_E), splat(_MAGIC))
    n = shifted - splat(_MAGIC)
    r = fma(n, splat(-_LN2_LOW), fma(n, splat(-_LN2_HIGH), x))
    p = fma(splat(_C6), r, splat(_C5))
    p = fma(p, r, splat(_C4))
    p = fma(p, r, splat(_C3))
    p = fma(p, r, splat(_C2))
    p = fma(p, r, splat(_C1))
    return (fma(p, r * r, r) + splat(_ONE)) * power_of_two(shifted)


@inlined
def silu(x: F32x16) -> F32x16:
    """x / (1 + e^-x)."""
    return x / (splat(_ONE) + exp(splat(_ZERO) - x))


_GELU_INNER, _GELU_CUBE = np.float32(2 * (2 / np.pi) ** 0.5), np.float32(0.044715)


@inlined
def gelu_tanh(x: F32x16) -> F32x16:
    """x/2 (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3)."""
    u = fma(x * x * x, splat(_GELU_CUBE), x) * splat(_GELU_INNER)
    return x / (splat(_ONE) + exp(splat(_ZERO) - u))
