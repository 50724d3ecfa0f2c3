"""Block keys: literal values that no process or release may change, and fields kept apart."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from hashlib import blake2b
from itertools import combinations

import pytest

from octavo.cache.keys import KEY_VERSION, block_key, root_key
from octavo.cache.manager import KVCacheManager
from octavo.cache.policies.lru import LRU

ROOT = "798bbae386a0dc80562343b262f4118c"
CHILD = "4a9400d228ae4b7c60a5d33d4759427e"


def test_keys_are_these_bytes_for_ever() -> None:
    """A change here makes every stored key mean something else: raise KEY_VERSION with it."""
    root = root_key(model=b"weights", adapter="lora@1", salt="tenant", block_size=16)
    assert KEY_VERSION == 1
    assert root.hex() == ROOT
    assert block_key(root, range(16)).hex() == CHILD


def test_keys_follow_the_written_recipe() -> None:
    fields = (b"octavo", struct.pack("<I", 1), b"w", b"a", "sält".encode(), struct.pack("<I", 4))
    packed = b"".join(struct.pack("<Q", len(field)) + field for field in fields)
    root = blake2b(packed, digest_size=16).digest()
    assert root_key(model=b"w", adapter="a", salt="sält", block_size=4) == root
    tokens = [1, 70_000, 2**32 - 1]
    expected = blake2b(root + struct.pack("<3I", *tokens), digest_size=16).digest()
    assert block_key(root, tokens) == expected


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_keys_agree_across_processes(hash_seed: str) -> None:
    code = (
        "from octavo.cache.keys import *;"
        "r = root_key(model=b'weights', adapter='lora@1', salt='tenant', block_size=16);"
        "print(r.hex(), block_key(r, range(16)).hex())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == [ROOT, CHILD]


def test_no_two_fields_can_be_confused() -> None:
    """vllm#44701, #30931: a salt "X" and an adapter named "X" gave the same key."""
    roots = {
        "plain": root_key(model=b"m", block_size=16),
        "salt": root_key(model=b"m", salt="X", block_size=16),
        "adapter": root_key(model=b"m", adapter="X", block_size=16),
        "model": root_key(model=b"mX", block_size=16),
        "both": root_key(model=b"m", adapter="X", salt="X", block_size=16),
        "reloaded adapter": root_key(model=b"m", adapter="X@2", block_size=16),
        "split 1": root_key(model=b"m", adapter="ab", salt="c", block_size=16),
        "split 2": root_key(model=b"m", adapter="a", salt="bc", block_size=16),
        "size": root_key(model=b"m", block_size=32),
        "surrogate": root_key(model=b"m", salt="\ud800", block_size=16),
    }
    for one, other in combinations(roots, 2):
        assert roots[one] != roots[other], (one, other)


def test_a_key_depends_on_every_token_and_on_all_before_it() -> None:
    root = root_key(model=b"m", block_size=4)
    keys = {
        block_key(root, (1, 2, 3, 4)),
        block_key(root, (1, 2, 4, 3)),
        block_key(root, (1, 2, 3, 260)),  # the same low byte as 4
        block_key(block_key(root, (0, 0, 0, 0)), (1, 2, 3, 4)),
    }
    assert len(keys) == 4


def test_the_manager_derives_keys_by_model_salt_and_block_size() -> None:
    from cache.cache_driver import make_request

    def keys(model: bytes, size: int, salt: str) -> list[object]:
        manager = KVCacheManager(8, size, LRU, model=model)
        request = make_request("r", range(8), salt=salt)
        manager.match_prefix(request)
        return request.block_keys

    expected = block_key(root_key(model=b"m", salt="s", block_size=4), range(4))
    assert keys(b"m", 4, "s") == [expected, block_key(expected, range(4, 8))]
    firsts = [keys(*args)[0] for args in [(b"m", 4, ""), (b"m", 4, "t"), (b"n", 4, "s")]]
    assert expected not in firsts
    assert len({*firsts}) == 3
