"""Who shares: the prefixes that can be reused, at block granularity.

One node is one full block; its key is the chained hash of everything before and in it, so a path
from the root is found by looking up one key after another, and nodes never split.

        keys of a prompt:   k0      k1      k2      k3
        tree:               k0 ───► k1 ───► k2              match_prefix finds k0, k1, k2
                              └───► k1' ──► k2'             (another prompt, same first block)

A node that must give up its block before its children is hollow (see `window.py`); without sliding
windows there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.cache.window import NO_BLOCK
from octavo.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from octavo.cache.block_pool import BlockPool


class Node:
    """One shared block: where its content lies and how many blocks continue it."""

    __slots__ = ("block_id", "key", "num_children", "parent")

    def __init__(self, key: Hashable, block_id: int, parent: Node | None) -> None:
        self.key = key
        self.block_id = block_id
        self.parent = parent
        self.num_children = 0


class RadixTree:
    """The published blocks, by key. Counts no references and evicts nothing."""

    __slots__ = ("_nodes",)

    def __init__(self) -> None:
        self._nodes: dict[Hashable, Node] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def get(self, key: Hashable) -> Node | None:
        """Return the node of ``key``, or None."""
        return self._nodes.get(key)

    def match_prefix(self, keys: Sequence[Hashable]) -> list[Node]:
        """Return the nodes of the longest run of leading ``keys`` that is in the tree."""
        get = self._nodes.get
        nodes = []
        for key in keys:
            node = get(key)
            if node is None:
                break
            nodes.append(node)
        return nodes

    def insert(
        self, keys: Sequence[Hashable], block_ids: Sequence[int], parent: Node | None
    ) -> None:
        """Add a run of blocks, each behind the one before it, the first behind ``parent``.

        None of ``keys`` is in the tree; ``parent`` None is the start of a prompt.
        """
        nodes = self._nodes
        for key, block_id in zip(keys, block_ids, strict=True):
            node = Node(key, block_id, parent)
            nodes[key] = node
            if parent is not None:
                parent.num_children += 1
            parent = node

    def remove(self, key: Hashable) -> Node:
        """Take a leaf out and return it, with the hollow ancestors that have no child any more."""
        node = self._nodes.pop(key)
        if node.num_children:
            raise InvariantError(f"a block with {node.num_children} children was removed")
        parent = node.parent
        if parent is not None:
            parent.num_children -= 1
            if parent.block_id == NO_BLOCK and not parent.num_children:
                self.remove(parent.key)
        return node

    def is_leaf(self, key: Hashable) -> bool:
        """Return whether nothing continues the block of ``key``."""
        return self._nodes[key].num_children == 0

    def check_invariants(self, pool: BlockPool | None) -> None:
        """Raise `InvariantError` unless links, counts and blocks agree, recomputed from scratch.

        With ``pool``, a block may not be held more often than its parent, nor may a node be
        hollow: that is so where no request lets go of a part of its blocks.
        """
        children: dict[Hashable, int] = {}
        blocks: set[int] = set()
        for key, node in self._nodes.items():
            if node.key != key:
                raise InvariantError("a node lies under a key that is not its own")
            if node.block_id in blocks:
                raise InvariantError(f"block {node.block_id} is in the tree twice")
            if node.block_id != NO_BLOCK:
                blocks.add(node.block_id)
            elif pool is not None or not node.num_children:
                raise InvariantError("a node is hollow")
            parent = node.parent
            if parent is None:
                continue
            if self._nodes.get(parent.key) is not parent:
                raise InvariantError("a node's parent is not in the tree")
            children[parent.key] = children.get(parent.key, 0) + 1
            if pool is None:
                continue
            if pool.ref_counts[parent.block_id] < pool.ref_counts[node.block_id]:
                raise InvariantError("a block is referenced more often than its parent")
        for key, node in self._nodes.items():
            if node.num_children != children.get(key, 0):
                raise InvariantError("a node's count of children is wrong")
