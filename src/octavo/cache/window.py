"""Sliding windows: which blocks a request still needs when no layer looks further back.

In a model whose every layer sees only the last `window` tokens, blocks that lie before every later
query's window are let go while their request goes on. They stay shared and evictable like any
other block; but a block may then die before the blocks that continue it. Its node stays, *hollow*,
with its place in the tree and no content, and is filled when somebody computes the block again.

    tokens computed      0 ............................ n   window
    blocks         [ let go ][ let go ][ seen by n ][ seen by n ][ tail ]
    table             -1        -1         id           id         id

Pure arithmetic; holds no account.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from octavo.cache.radix_tree import Node

NO_BLOCK = -1
"""In a block table: the block has left every window. In a node: it is hollow."""


def first_needed_block(position: int, num_full: int, window: int, block_size: int) -> int:
    """Return the first of ``num_full`` leading blocks that the token at ``position`` needs.

    A query sees the keys at the positions above ``position - window``. The last full block counts
    as needed in any case: who holds it holds the place in the tree where the next one goes.
    """
    return max(0, min((position - window + 1) // block_size, num_full - 1))


def usable_prefix(nodes: Sequence[Node], num_tokens: int, window: int, block_size: int) -> int:
    """Return how many leading ``nodes`` spare a request of ``num_tokens`` tokens its computation.

    The longest run whose end sees no hollow node. At least one token is computed in any case.
    """
    usable = 0
    last_hollow = -1
    for count, node in enumerate(nodes, start=1):
        if node.block_id == NO_BLOCK:
            last_hollow = count - 1
        position = min(count * block_size, num_tokens - 1)
        if first_needed_block(position, count, window, block_size) > last_hollow:
            usable = count
    return usable
