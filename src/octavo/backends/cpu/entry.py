"""Entry points: a function of kernels becomes an object file that needs nothing of Numba's.

It is compiled as one that takes the address of a table (`object_code.py`), without Numba's
wrappers, which know Python's objects. What it calls of others is the C library's.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"

from __future__ import annotations

import contextlib
import gc
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.core import config
from numba.core.compiler import Flags, compile_extra
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from octavo.backends.cpu.compiler import OPTIONS, kernel
from octavo.backends.cpu.machine import cpu_features, cpu_name
from octavo.backends.cpu.object_code import ObjectCode
from octavo.backends.cpu.words import array_ir
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_WORD = ir.IntType(64)


@global_compiler_lock
def compile_entry(function: Callable[..., None], kinds: Sequence[str]) -> ObjectCode:
    """Compile ``function`` for arguments of these kinds (`object_code.kind_of`).

    Raises `ConfigError` where Numba was set up for another CPU than this process takes it for.
    """
    body, arguments = kernel(function), _reader([_type_of(kind) for kind in kinds])

    def entry(table):
        body(*arguments(table))

    flags = Flags()
    cpu_target.options.parse_as_flags(flags, {**OPTIONS, "nopython": True})
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    with _setting(CPU_NAME=cpu_name(), CPU_FEATURES=cpu_features()):
        typing, target = cpu_target.typing_context, cpu_target.target_context
        features = target.codegen().magic_tuple()[2]
    if features != cpu_features():
        raise ConfigError(
            f"Numba was told before to compile for a CPU with {features}, and the kernels are "
            f"for one with {cpu_features()}; set NUMBA_CPU_FEATURES in the environment"
        )
    # Other levels of LLVM's optimiser take longer, and no kernel gets faster.
    with _setting(OPT=type(config.OPT)(min(1, config.OPT))), _without_gc():
        typing.refresh()
        target.refresh()
        done = compile_extra(typing, target, entry, (types.int64,), types.none, flags, {})
    assert not done.library.has_dynamic_globals, "holds an address of this process"
    return ObjectCode(done.fndesc.llvm_func_name, done.library._get_compiled_object())


def _type_of(kind: str) -> Any:
    name, is_array, axes = kind.removesuffix("]").partition("[")
    number = from_dtype(np.dtype(name))
    return types.Array(number, int(axes), "C") if is_array else number


def _reader(kinds: list[Any]) -> Any:
    """Return an intrinsic ``(address)``: a tuple of arguments, from the table that lies there."""
    result = types.Tuple(kinds)

    @intrinsic
    def arguments(typingctx, address):  # noqa: ARG001
        def code(context, builder, _signature, values):
            table = builder.inttoptr(values[0], _WORD.as_pointer())
            places = itertools.count()

            def word(kind: Any = _WORD) -> Any:
                place = builder.gep(table, [ir.Constant(_WORD, next(places))])
                return builder.load(builder.bitcast(place, kind.as_pointer()))

            read = []
            for kind in kinds:
                if isinstance(kind, types.Array):
                    address, *shape = (word() for _ in range(1 + kind.ndim))
                    read.append(array_ir(context, builder, kind, address, shape))
                else:
                    read.append(word(context.get_value_type(kind)))
            return context.make_tuple(builder, result, read)

        return result(types.int64), code

    return arguments


@contextlib.contextmanager
def _without_gc() -> Iterator[None]:
    """Compiling makes millions of objects, and little garbage: collecting it costs a fifth."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _setting(**values: Any) -> Iterator[None]:
    """Let Numba's configuration have these values meanwhile."""
    before = {name: getattr(config, name) for name in values}
    vars(config).update(values)
    try:
        yield
    finally:
        vars(config).update(before)
