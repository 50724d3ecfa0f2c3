"""When a request waited, was read and was answered; what metrics and traces both tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.engine.stats import RequestStats


def phases(stats: RequestStats) -> dict[str, tuple[float, float]]:
    """Return begin and end of each phase that an ended request came to, `perf_counter` seconds.

    They are ``queue``, ``prefill`` and ``decode``, in this order. The one in which the request was
    aborted or failed, or was done with (nothing was to be generated), lasts until the request's
    end.
    """
    assert stats.ended is not None, "a request has ended when this is asked"
    found: dict[str, tuple[float, float]] = {}
    if stats.queued is not None:
        found["queue"] = (stats.queued, _first(stats.scheduled, stats.ended))
    if stats.scheduled is not None:
        found["prefill"] = (stats.scheduled, _first(stats.first_token, stats.ended))
    if stats.first_token is not None:
        found["decode"] = (stats.first_token, _first(stats.last_token, stats.ended))
    return found


def phase_seconds(stats: RequestStats) -> dict[str, float]:
    """Return how long each phase took, 0 for one that the request never came to."""
    found = phases(stats)
    return {
        name: found[name][1] - found[name][0] if name in found else 0.0
        for name in ("queue", "prefill", "decode")
    }


def _first(*times: float | None) -> float:
    return next(time for time in times if time is not None)
