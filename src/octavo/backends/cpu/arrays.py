"""The arrays of a step in bundles, as kernels hand them on: named tuples, gone once compiled.

`workspace.py` and `packing.py` make the arrays, `plan.py` names their columns. A kernel takes the
bundles whose arrays it needs; passing one costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from octavo.backends.cpu.simd import Floats, Ints


class Member(NamedTuple):
    """A thread of the team, and the numbers that all its threads share (`team.py`)."""

    sync: Ints
    thread: int
    num_threads: int


class Plan(NamedTuple):
    """The numbers that steer the step."""

    model: Ints
    layers: Ints  # [num_layers, LAYER_SIZE]
    reals: Floats


class Weights(NamedTuple):
    """What the model learned, packed."""

    matrices: Ints  # [num_matrices, MATRIX_SIZE]
    arena: Ints
    floats: Floats


class Batch(NamedTuple):
    """What the step is to compute: `InputBatch`, and its size."""

    job: Ints
    ids: Ints
    positions: Ints
    slots: Ints
    starts: Ints
    lens: Ints
    tables: Ints
    wanted: Ints


class Rows(NamedTuple):
    """Rows of float32 on their way through a layer, one a token."""

    x: Floats  # the residual stream
    h: Floats  # what a block adds to it
    wide: Floats  # q, k, v; what down reads if its weights are floats
    y: Floats  # what a matrix product reads


class Codes(NamedTuple):
    """The rows of `Rows.y`, quantised (`elementwise.quantise_row`)."""

    codes: Ints  # [., codes_stride(K)]
    scales: Floats  # [., K / 32]
    sums: Floats  # [., K / 32]
    half_sums: Floats  # [., K / 16]
    starts: Floats  # [., 4 * K / 32], the bits of integers


class Cache(NamedTuple):
    """Keys and values of every layer."""

    keys: Ints  # [layer, kv_head, block, head_dim, 16]
    values: Ints  # [layer, kv_head, block, 16, head_dim]


class Room(NamedTuple):
    """Attention's items and the states of split tiles; a thread's own room."""

    items: Ints  # [., ITEM_SIZE]
    parts: Floats
    scratch: Floats
    panel: Floats  # [4, K_CHUNK, 16]
    seen: Ints
    spare: Ints  # codes
