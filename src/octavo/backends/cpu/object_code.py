"""Machine code outside Numba: an entry point's object file, linked by LLVM, called by ctypes.

What an entry point is given lies in a table of 64-bit words, in the order of its parameters: a
number is one word, an array its address and its shape. `entry.py` compiles a function that begins
by reading such a table.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import llvmlite.binding as llvm
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Argument: TypeAlias = "int | float | np.generic | NDArray[Any]"

_CALL: Final = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 3)
"""A compiled function: status of where its result and its exception go, and of the table."""
_SPARE: Final = 2
"""Words before the table: where a result and an exception would go, if there were any."""


class ObjectCode(NamedTuple):
    """A function in the machine's code, not yet in memory."""

    symbol: str
    content: bytes
    """An object file: of ELF, or what the system has."""


def kind_of(argument: Argument) -> str:
    """Return an argument's type, as NumPy names it, and an array's number of axes: float32[2]."""
    array = np.asarray(argument)
    return (
        f"{array.dtype.name}[{array.ndim}]"
        if isinstance(argument, np.ndarray)
        else array.dtype.name
    )


def _words_of(argument: Argument) -> tuple[int, ...]:
    if isinstance(argument, np.ndarray):
        assert argument.flags.c_contiguous
        return argument.ctypes.data, *argument.shape
    number = np.asarray(argument)
    if number.dtype.kind == "f":
        number = number.view(f"i{number.itemsize}")
    return (int(number),)


class Call:
    """An entry point with its arguments, ready to be called, from any thread but not by two."""

    def __init__(self, function: Any, arguments: tuple[Argument, ...]) -> None:
        words = [word for argument in arguments for word in _words_of(argument)]
        self._function = function
        self._arguments = arguments  # their memory is in use
        self._table = np.array([0] * _SPARE + words, np.int64)
        address = self._table.ctypes.data
        self._places = address, address + 8, address + 8 * _SPARE

    def __call__(self) -> None:
        """Call it, without the GIL."""
        status = self._function(*self._places)
        assert status == 0, "entry points raise nothing"


class EntryPoint:
    """A function in memory."""

    def __init__(self, code: ObjectCode) -> None:
        """Link ``code``. Raises `RuntimeError` where it is none, or calls what is not there."""
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._linker = llvm.create_lljit_compiler()
        library = llvm.JITLibraryBuilder().add_object_img(code.content).add_current_process()
        # Who drops the library or the linker drops the code.
        self._library = library.export_symbol(code.symbol).link(self._linker, "octavo")
        self._function = _CALL(self._library[code.symbol])

    def bind(self, *arguments: Argument) -> Call:
        """Return the call with these arguments; a number stays, an array may change."""
        return Call(self._function, arguments)

    def __call__(self, *arguments: Argument) -> None:
        """Call it once."""
        self.bind(*arguments)()
