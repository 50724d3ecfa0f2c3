"""What a weight on disk is to the rest of Octavo, whatever the format of its file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from octavo.model.files.quants import GGMLType


class Tensor(Protocol):
    """A tensor of an open model file; its bytes are read when asked for."""

    @property
    def name(self) -> str:
        """As in the file."""

    @property
    def type(self) -> GGMLType:
        """How `data` is encoded."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Row-major, the contiguous dimension last."""

    @property
    def num_elements(self) -> int:
        """The number of values."""

    @property
    def num_bytes(self) -> int:
        """The length of `data`."""

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The bytes as stored: a flat, read-only view of the map, nothing copied."""

    def dequantize(self) -> npt.NDArray[np.float32]:
        """Return the values as a new float32 array of `shape`; `ModelFileError` if unsupported."""
