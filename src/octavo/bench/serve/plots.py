"""The picture: latencies by percentile, and throughput against concurrency where there are runs.

Needs the extra ``plots``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.bench.serve.metrics import values_of
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from octavo.bench.serve.run import Run

_METRICS = (("ttft", "to the first token"), ("e2el", "to the last"), ("itl", "between chunks"))


def check_can_plot() -> None:
    """Raise `ConfigError` where matplotlib is missing."""
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        raise ConfigError(
            "a plot needs matplotlib: pip install 'octavo[plots]'", param="plot"
        ) from None


def draw(runs: Sequence[Run], results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw a PNG: a panel of percentiles for each metric, lines are runs; then the throughput."""
    check_can_plot()
    from matplotlib.figure import Figure

    has_curve = len(runs) > 1
    figure = Figure(figsize=(4.4 * (3 + has_curve), 3.8), layout="constrained")
    panels = figure.subplots(1, 3 + has_curve)
    for axes, (metric, name) in zip(panels, _METRICS, strict=False):
        _draw_percentiles(axes, runs, metric)
        axes.set_title(f"{metric}, {name}", fontsize=10)
    if has_curve:
        _draw_throughput(panels[-1], results)
    figure.savefig(path, dpi=110, format="png")


def _draw_percentiles(axes: Any, runs: Sequence[Run], metric: str) -> None:
    """Draw the values, sorted, each at its percentile."""
    for run in runs:
        values = values_of(metric, [answer for answer in run.answers if not answer.error])
        if values:
            limit = run.max_concurrency
            q = np.linspace(0, 100, min(len(values), 400)) if len(values) > 1 else [50]
            label = "no limit" if limit is None else f"{limit} at a time"
            marker = "o" if len(values) == 1 else None
            axes.plot(q, 1e3 * np.percentile(values, q), label=label, marker=marker)
    axes.set_xlabel("percentile")
    axes.set_ylabel("ms")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if len(runs) > 1:
        axes.legend(fontsize=8)


def _draw_throughput(axes: Any, results: Sequence[dict[str, Any]]) -> None:
    """Draw tokens a second against the limit of concurrency."""
    points = sorted((each["max_concurrency"], each["output_throughput"]) for each in results)
    axes.plot(*zip(*points, strict=True), marker="o")
    axes.set_xscale("log", base=2)
    axes.set_xticks([limit for limit, _ in points], [str(limit) for limit, _ in points])
    axes.set_xlabel("requests at a time")
    axes.set_ylabel("tok/s out")
    axes.set_ylim(bottom=0)
    axes.set_title("throughput", fontsize=10)
    axes.grid(alpha=0.3)
