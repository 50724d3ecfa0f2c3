"""The eviction policies, one short file each, and how a user names one."""

from __future__ import annotations

import importlib

from octavo.cache.eviction import EvictionPolicy
from octavo.cache.policies.arc import ARC
from octavo.cache.policies.fifo import FIFO
from octavo.cache.policies.lfu import LFU
from octavo.cache.policies.lru import LRU
from octavo.cache.policies.s3fifo import S3FIFO
from octavo.cache.policies.slru import SLRU
from octavo.errors import ConfigError, in_one_line, shown

POLICIES: dict[str, type[EvictionPolicy]] = {
    policy.name: policy for policy in (FIFO, LRU, LFU, SLRU, S3FIFO, ARC)
}


BOUNDS = ("min", "infinite")
"""What reports call the bounds that are no policies: the best that could be, and no limit."""

_MOST_OF_A_NAME = 40  # characters


def find_policy(name: str) -> type[EvictionPolicy]:
    """Return the policy called ``name``, or the class that ``module:Class`` names.

    Raises `ConfigError` if there is none.
    """
    if name in POLICIES:
        return POLICIES[name]
    module, colon, class_name = name.partition(":")
    if not colon:
        raise _refused(name, f"known are {', '.join(sorted(POLICIES))}, and module:Class")
    try:
        found = getattr(importlib.import_module(module), class_name)
    except ImportError as error:
        reason = f"{in_one_line(error)} (PYTHONPATH=. finds modules in this folder)"
        raise _refused(name, reason) from None
    except (Exception, SystemExit) as error:  # whatever a user's module does while it is imported
        raise _refused(name, f"it cannot be imported: {in_one_line(error)}") from error
    if not (isinstance(found, type) and issubclass(found, EvictionPolicy)):
        raise _refused(name, "it is not a class derived from octavo.cache.eviction.EvictionPolicy")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise _refused(name, f"it lacks {', '.join(missing)}")
    if fault := _fault(found):
        raise _refused(name, fault)
    return found


def _fault(policy: type[EvictionPolicy]) -> str | None:
    """Return what would make a policy from outside do or be called something else than it seems."""
    label = vars(policy).get("name")
    if not isinstance(label, str) or not label.strip():
        return "it has no name of its own; write name = '...' in the class: reports show it"
    if len(label) > _MOST_OF_A_NAME or not label.isprintable() or label != label.strip():
        return (
            f"its name is {shown(label)}; reports show at most {_MOST_OF_A_NAME} printable "
            "characters, none of them a space at either end"
        )
    if POLICIES.get(label.lower(), policy) is not policy:
        return f"its name is {label!r}, which is another policy's; reports would mix them up"
    if label.lower() in BOUNDS:
        return f"its name is {label!r}, which is a bound's; reports would mix them up"
    if policy.evict is not EvictionPolicy.evict:
        return "it overrides evict(), which is never asked; override victim() or victims()"
    overrides = {
        method: next(at for at, kind in enumerate(policy.__mro__) if method in vars(kind))
        for method in ("victim", "victims")
    }
    if overrides["victim"] < overrides["victims"] and (
        policy.__mro__[overrides["victims"]] is not EvictionPolicy
    ):
        base = policy.__mro__[overrides["victims"]].__name__
        return f"its victim() would never be asked: {base} decides in victims(); override that"
    return None


def _refused(name: str, reason: str) -> ConfigError:
    return ConfigError(f"eviction_policy is {name!r}; {reason}", param="eviction_policy")
