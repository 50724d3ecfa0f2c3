"""Who shares: the prefixes that can be reused, at block granularity.

One node is one full block; its key is the chained hash of everything before and in it, so a path
from the root is found by looking up one key after another, and nodes never split.

        keys of a prompt:   k0      k1      k2      k3
        tree:               k0 ───► k1 ───► k2              match_prefix finds k0, k1, k2
                              └───► k1' ──► k2'             (another prompt, same first block)

A node that gave up its block before its children is hollow: it keeps its place and has no content
(`window.py`). Without sliding windows there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.cache.window import NO_BLOCK
from octavo.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from octavo.cache.block_pool import BlockPool


class Node:
    """One shared block: where its content lies and how many blocks continue it.

    Every block has one node, made once, which is in the tree while its content is shared: a cache
    at work replaces thousands a second, and making an object costs more than all else here.
    """

    __slots__ = ("block_id", "key", "num_children", "parent")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.key: Hashable = None
        self.parent: Node | None = None
        self.num_children = 0


class RadixTree:
    """The published blocks, by key. Counts no references and evicts nothing."""

    __slots__ = ("_node_of_block", "_nodes")

    def __init__(self, num_blocks: int) -> None:
        self._nodes: dict[Hashable, Node] = {}
        self._node_of_block = [Node(block_id) for block_id in range(num_blocks)]

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
        nodes, node_of_block = self._nodes, self._node_of_block
        if parent is not None:
            parent.num_children += 1
        for key, block_id in zip(keys, block_ids, strict=True):
            node = node_of_block[block_id]
            node.key = key
            node.parent = parent
            node.num_children = 1  # the next of the run
            nodes[key] = node
            parent = node
        node.num_children = 0

    def remove(self, keys: Iterable[Hashable]) -> list[int]:
        """Take ``keys`` out, each a leaf once those before it are gone; return their blocks.

        Hollow ancestors that have no child any more go with them.
        """
        nodes = self._nodes
        block_ids = []
        for key in keys:
            node = nodes.pop(key)
            if node.num_children:
                raise InvariantError(f"a block with {node.num_children} children was removed")
            parent = node.parent
            if parent is not None:
                parent.num_children -= 1
                if parent.block_id == NO_BLOCK and not parent.num_children:
                    self.remove((parent.key,))
            block_ids.append(node.block_id)
        return block_ids

    def hollow(self, key: Hashable) -> int:
        """Take the block of ``key`` away, whose node stays for its children; return the block."""
        node = self._nodes[key]
        block_id = node.block_id
        self._node_of_block[block_id] = Node(block_id)
        node.block_id = NO_BLOCK
        return block_id

    def fill(self, node: Node, block_id: int) -> None:
        """Give a hollow node content again."""
        node.block_id = block_id
        self._node_of_block[block_id] = node

    def parent(self, key: Hashable) -> Hashable | None:
        """Return the key before ``key`` in its prompts, None if it starts them."""
        parent = self._nodes[key].parent
        return None if parent is None else parent.key

    def is_leaf(self, key: Hashable) -> bool:
        """Return whether nothing continues the block of ``key``."""
        return self._nodes[key].num_children == 0

    def num_leaves(self, keys: Sequence[Hashable]) -> int:
        """Return how many of ``keys``, from the first on, are leaves once those before are gone."""
        gone: dict[Node, int] = {}
        for i, key in enumerate(keys):
            node = self._nodes[key]
            if node.num_children and node.num_children != gone.get(node, 0):
                return i
            parent = node.parent
            if parent is not None:
                gone[parent] = gone.get(parent, 0) + 1
        return len(keys)

    def check_invariants(self, pool: BlockPool | None) -> None:
        """Raise `InvariantError` unless links, counts and blocks agree, recomputed from scratch.

        With ``pool``, a block may not be held more often than its parent, nor may a node be
        hollow: that is so where no request lets go of a part of its blocks.
        """
        children: dict[Hashable, int] = {}
        for key, node in self._nodes.items():
            if node.key != key:
                raise InvariantError("a node lies under a key that is not its own")
            if node.block_id == NO_BLOCK:
                if pool is not None or not node.num_children:
                    raise InvariantError("a node is hollow")
            elif self._node_of_block[node.block_id] is not node:
                raise InvariantError(f"block {node.block_id} is in the tree twice")
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
