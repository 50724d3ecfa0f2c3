"""Views that make a weight, as a file holds it, what a decoder reads.

Nothing is read or copied before somebody asks for the values. Knows no names and no families.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from octavo.model.files.quants import GGMLType, dequantize

if TYPE_CHECKING:
    import numpy.typing as npt

    from octavo.model.files.tensor import Tensor


@dataclass(frozen=True, slots=True)
class _View(ABC):
    """A weight made of another one when it is asked for; as such it is float32."""

    source: Tensor

    @property
    def name(self) -> str:
        """The source's."""
        return self.source.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Row-major; the source's."""
        return self.source.shape

    @property
    def num_elements(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    @property
    def type(self) -> GGMLType:
        """How `data` holds the values."""
        return GGMLType.F32

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The bytes of the values, computed."""
        return self.dequantize().reshape(-1).view(np.uint8)

    @property
    def num_bytes(self) -> int:
        """The length of `data`."""
        return 4 * self.num_elements

    @abstractmethod
    def dequantize(self) -> npt.NDArray[np.float32]:
        """Return the values as float32, in `shape`."""


@dataclass(frozen=True, slots=True)
class RowSlice(_View):
    """Some rows of a tensor in which several lie above one another, as they are stored."""

    first: int
    stop: int

    @property
    def name(self) -> str:
        """The source's name and the rows."""
        return f"{self.source.name}[{self.first}:{self.stop}]"

    @property
    def shape(self) -> tuple[int, ...]:
        """Row-major."""
        return (self.stop - self.first, *self.source.shape[1:])

    @property
    def type(self) -> GGMLType:
        """The source's."""
        return self.source.type

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The rows' bytes: of stored ones a view, nothing copied. Blocks never span rows."""
        rows = self.source.data.reshape(self.source.shape[0], -1)
        return rows[self.first : self.stop].reshape(-1)

    @property
    def num_bytes(self) -> int:
        """The length of `data`."""
        return len(self.data)

    def dequantize(self) -> npt.NDArray[np.float32]:
        """Return the rows as float32."""
        return dequantize(self.type, self.data, self.shape)


@dataclass(frozen=True, slots=True)
class Transposed(_View):
    """A matrix that is stored ``[in, out]``, as ``[out, in]``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Row-major."""
        return self.source.shape[::-1]

    def dequantize(self) -> npt.NDArray[np.float32]:
        """Return the transposed values, contiguous."""
        return np.ascontiguousarray(self.source.dequantize().T)


@dataclass(frozen=True, slots=True)
class PlusOne(_View):
    """A norm's weight that is stored less one."""

    def dequantize(self) -> npt.NDArray[np.float32]:
        """Return the weight itself."""
        return self.source.dequantize() + np.float32(1)
