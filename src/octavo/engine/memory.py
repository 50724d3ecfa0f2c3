"""How much memory this process may still take: the machine's, or its container's if less."""

from __future__ import annotations

import contextlib
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_LIMIT_AND_USE = (
    ("memory.max", "memory.current"),  # cgroup v2
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),  # v1
)


def available_memory() -> int:
    """Return the bytes that can be allocated without swapping."""
    available = _free_memory()
    for limit_name, use_name in _LIMIT_AND_USE:
        limit, use = _read_int(_CGROUP / limit_name), _read_int(_CGROUP / use_name)
        if limit is not None and use is not None:
            available = min(available, max(0, limit - use))
    return available


def _free_memory() -> int:
    """Return what the machine has free, or could at once: Linux's own number, else psutil's."""
    with contextlib.suppress(OSError):
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    import psutil  # takes longer to import than all of the above

    return int(psutil.virtual_memory().available)


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such file, or "max": no limit
        return None
