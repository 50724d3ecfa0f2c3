"""The bar for accuracy: the same model in NumPy, its activations quantised to int8 by groups of 32.

Everything else is the reference backend's: float32 sums, the file's own weights, float16 keys and
values. What this costs against float activations is what int8 activations cost at all.
"""

from __future__ import annotations

import numpy as np

from octavo.backends.reference import ReferenceBackend
from octavo.model.files.quants import GGMLType

_FLOATS = (GGMLType.F16, GGMLType.BF16, GGMLType.F32)


def rounded(x):
    """Rows as int8 codes times a scale, by groups of 32."""
    groups = x.reshape(*x.shape[:-1], -1, 32)
    scale = np.abs(groups).max(axis=-1, keepdims=True) / np.float32(127)
    safe = np.where(scale == 0, np.float32(1), scale)
    return (np.rint(groups / safe) * scale).reshape(x.shape)


class EmulatedBackend(ReferenceBackend):
    """The reference with rounded inputs wherever a quantised matrix multiplies."""

    def __init__(self, spec, tensors, **more):
        super().__init__(spec, tensors, **more)
        self._coded = {name for name, tensor in tensors.items() if tensor.type not in _FLOATS}

    def _project(self, layer, name, x):
        coded = f"blk.{layer}.{name}.weight" in self._coded
        return super()._project(layer, name, rounded(x) if coded else x)

    def _forward(self, batch):
        head = "token_embd" if self.spec.tied_embeddings else "output"
        weight = self._weights[f"{head}.weight"]
        coded = f"{head}.weight" in self._coded
        norm = self._norm

        def norm_and_round(x, name):
            y = norm(x, name)
            return rounded(y) if coded and name == "output_norm" else y

        self._norm = norm_and_round  # type: ignore[method-assign]
        try:
            assert weight is not None
            return super()._forward(batch)
        finally:
            del self._norm
