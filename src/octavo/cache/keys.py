"""The identity of a block: a hash over everything that its keys and values depend on.

A block's key chains its parent's key with its own tokens, so equal keys mean equal whole
prefixes. The fields that are not tokens (format version, model, adapter, salt, ...) go into the
root of the chain, each with its length before it, so that no two fields can be confused with one
another. BLAKE2b has a fixed seed: keys agree across processes and machines. With 128 bits a chance
collision is out of the question, which is why a hit is not compared token by token.
"""

from __future__ import annotations

import sys
from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

KEY_BYTES = 16
KEY_VERSION = 1
"""Raised whenever the meaning of stored keys and values changes."""


def root_key(*, model: bytes, adapter: str = "", salt: str = "", block_size: int) -> bytes:
    """Return the key from which every chain of one (model, adapter, salt, block size) starts.

    ``model`` is the fingerprint of the weights, ``adapter`` the name and version of what was
    added to them, ``salt`` a secret that keeps one tenant's prefixes from another's.
    """
    hasher = blake2b(digest_size=KEY_BYTES)
    fields = (
        b"octavo",
        KEY_VERSION.to_bytes(4, "little"),
        model,
        adapter.encode("utf-8", "surrogatepass"),
        salt.encode("utf-8", "surrogatepass"),
        block_size.to_bytes(4, "little"),
    )
    for field in fields:
        hasher.update(len(field).to_bytes(8, "little"))
        hasher.update(field)
    return hasher.digest()


def block_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Return the key of the block that holds ``token_ids`` behind the block ``parent``."""
    tokens = array("I", token_ids)
    if sys.byteorder == "big":  # keys agree across machines
        tokens.byteswap()
    return blake2b(parent + tokens.tobytes(), digest_size=KEY_BYTES).digest()
