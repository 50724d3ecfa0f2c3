"""What a vector is: its Numba types, and how an operation on it becomes LLVM's language.

LLVM legalises `<16 x float>` to one AVX-512 register, two of AVX2 or four of NEON; the bits are the
same. A vector cannot be returned to Python: tests go through arrays.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

if TYPE_CHECKING:
    from collections.abc import Callable

F32x16: TypeAlias = Any
"""In annotations: sixteen float32, inside a kernel."""
I32x16: TypeAlias = Any
"""In annotations: sixteen int32, or 64 bytes of codes."""
Floats: TypeAlias = Any
"""In annotations: a contiguous float32 array."""
Ints: TypeAlias = Any
"""In annotations: a contiguous array of integers (codes, halves, indices)."""

# -- types ----------------------------------------------------------------------------------------
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_ELEMENTS = {"f64": ir.DoubleType(), "f32": ir.FloatType(), "i32": I32, "i16": I16}


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
WORDS = ir.VectorType(I16, 16)

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
            4: lambda _typing, _a, _b, _c, _d: answer,
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
    one = builder.insert_element(nothing, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, nothing, constant(ir.VectorType(I32, kind.count), 0))


def lanes_ir(builder: Any, vector: Any, order: list[int]) -> Any:
    """Return the lanes of ``vector`` named by ``order``."""
    nothing = ir.Constant(vector.type, ir.Undefined)
    return builder.shuffle_vector(
        vector, nothing, ir.Constant(ir.VectorType(I32, len(order)), order)
    )


def half_ir(builder: Any, vector: Any, index: int) -> Any:
    """Return the lower (0) or upper (1) half of a vector."""
    size = vector.type.count // 2
    return lanes_ir(builder, vector, list(range(index * size, (index + 1) * size)))


def pick_ir(builder: Any, x: Any, y: Any, order: list[int]) -> Any:
    """Return the lanes named by ``order`` of ``x`` and ``y`` laid end to end."""
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(order)), order))


def join_ir(builder: Any, low: Any, high: Any) -> Any:
    """Return the vector whose halves are ``low`` and ``high``."""
    return pick_ir(builder, low, high, list(range(2 * low.type.count)))
