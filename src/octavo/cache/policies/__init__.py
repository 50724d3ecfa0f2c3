"""The eviction policies, one short file each, and the table by which a user names one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.cache.policies.lru import LRU
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.cache.eviction import EvictionPolicy

POLICIES: dict[str, type[EvictionPolicy]] = {policy.name: policy for policy in (LRU,)}


def find_policy(name: str) -> type[EvictionPolicy]:
    """Return the policy called ``name``; raises `ConfigError` if there is none."""
    try:
        return POLICIES[name]
    except KeyError:
        raise ConfigError(
            f"eviction_policy is {name!r}; known are {', '.join(sorted(POLICIES))}",
            param="eviction_policy",
        ) from None
