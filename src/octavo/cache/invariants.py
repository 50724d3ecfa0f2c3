"""The accounts of the cache, recomputed from scratch: free + referenced + idle = total."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.cache.window import NO_BLOCK
from octavo.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from octavo.cache.manager import KVCacheManager
    from octavo.engine.request import Request


def check_cache(cache: KVCacheManager, requests: Iterable[Request] | None) -> None:
    """Raise `InvariantError` unless pool, tree, policy and block tables agree."""
    counts = cache.pool.ref_counts
    cached = [node for node in cache.tree if node.block_id != NO_BLOCK]
    idle = sum(1 for node in cached if counts[node.block_id] == 0)
    cache.pool.check_invariants(idle=idle)
    cache.tree.check_invariants(None if cache.window is not None else cache.pool)
    if idle != cache.policy.num_evictable:
        raise InvariantError(
            f"{idle} cached blocks are held by nobody, the policy counts "
            f"{cache.policy.num_evictable}"
        )
    if requests is not None:
        _check_tables(cache, requests)


def _check_tables(cache: KVCacheManager, requests: Iterable[Request]) -> None:
    held = [0] * cache.pool.num_blocks
    for request in requests:
        for i, block_id in enumerate(request.block_table):
            if i < request.num_dropped_blocks:
                if block_id != NO_BLOCK:
                    raise InvariantError(f"{request!r} has a block that it let go")
                continue
            held[block_id] += 1
            if i < request.num_published_blocks:
                node = cache.tree.get(request.block_keys[i])
                if node is None or node.block_id != block_id:
                    raise InvariantError(f"{request!r} holds a block that its key does not")
    if held != cache.pool.ref_counts:
        raise InvariantError("the reference counts are not what the block tables hold")
