"""What a scrape is made of: families of samples, and the two things that are counted as they come.

A `Histogram` of prometheus-client takes 1.3 µs an observation and one of these 0.2 µs, which at
thousands of tokens a second is time of the engine; what is told at a scrape is the same.
"""

from __future__ import annotations

from bisect import bisect_left
from time import perf_counter
from typing import TYPE_CHECKING, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

RATE_SECONDS: Final = 10
"""How far back a `RecentRate` looks."""


class Histogram:
    """Counts values by bucket; ``bounds`` are the buckets' upper ends, ascending, without +Inf."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count ``value`` so many times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self.sum += value * count

    def buckets(self) -> list[tuple[str, float]]:
        """Return each upper end and how many values lie at or below it; the last is +Inf."""
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip(bounds, self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        return buckets


class RecentRate:
    """How many a second over the last `RATE_SECONDS`, or since the first if that is less."""

    __slots__ = ("_clock", "_counts", "_seconds", "_started")

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._started: float | None = None
        self._counts = [0] * RATE_SECONDS  # of the whole second in `_seconds`, modulo the length
        self._seconds = [-1] * RATE_SECONDS

    def add(self, count: int, began: float, ended: float) -> None:
        """Count what was done between ``began`` and ``ended``, the clock's seconds."""
        if self._started is None:
            self._started = began
        second = int(ended)
        at = second % RATE_SECONDS
        if self._seconds[at] != second:
            self._seconds[at], self._counts[at] = second, 0
        self._counts[at] += count

    def per_second(self) -> float:
        """Return the rate; 0 where nothing has been done of late."""
        if self._started is None:
            return 0.0
        now = self._clock()
        first = int(now) - RATE_SECONDS + 1
        pairs = list(zip(self._seconds, self._counts, strict=True))
        recent = sum(count for second, count in pairs if first <= second <= now)
        elapsed = now - max(float(first), self._started)
        return recent / elapsed if elapsed > 0 else 0.0


class FamilyMaker:
    """Makes families whose samples all have the same ``labels``, and some one more or several."""

    def __init__(self, **labels: str) -> None:
        self._names = list(labels)
        self._values = list(labels.values())

    def counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        """Return a running count; ``_total`` is appended to its name."""
        return self.counters(name, text, (), {(): value})

    def counters(
        self, name: str, text: str, labels: Sequence[str], samples: Mapping[tuple[str, ...], float]
    ) -> CounterMetricFamily:
        """Return running counts, one for each tuple of the values of ``labels``."""
        family = CounterMetricFamily(name, text, labels=[*self._names, *labels])
        for values, count in samples.items():
            family.add_metric([*self._values, *values], count)
        return family

    def gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        """Return a present state."""
        return self.gauges(name, text, (), {(): value})

    def gauges(
        self, name: str, text: str, labels: Sequence[str], samples: Mapping[tuple[str, ...], float]
    ) -> GaugeMetricFamily:
        """Return present states, one for each tuple of the values of ``labels``."""
        family = GaugeMetricFamily(name, text, labels=[*self._names, *labels])
        for values, state in samples.items():
            family.add_metric([*self._values, *values], state)
        return family

    def histogram(self, name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
        """Return a histogram."""
        return self.histograms(name, text, (), {(): histogram})

    def histograms(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        samples: Mapping[tuple[str, ...], Histogram],
    ) -> HistogramMetricFamily:
        """Return histograms, one for each tuple of the values of ``labels``."""
        family = HistogramMetricFamily(name, text, labels=[*self._names, *labels])
        for values, histogram in samples.items():
            family.add_metric([*self._values, *values], histogram.buckets(), histogram.sum)
        return family

    def summaries(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        samples: Mapping[tuple[str, ...], tuple[int, float]],
    ) -> SummaryMetricFamily:
        """Return counts and sums, a pair for each tuple of the values of ``labels``."""
        family = SummaryMetricFamily(name, text, labels=[*self._names, *labels])
        for values, (count, total) in samples.items():
            family.add_metric([*self._values, *values], count, total)
        return family
