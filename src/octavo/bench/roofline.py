"""The picture: operations a second against operations a byte, below the machine's limits.

What lies on the slope waits for memory, what lies under the roof computes (Williams et al., 2009).
Needs the extra ``plots``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from octavo.bench.peaks import Peaks
    from octavo.bench.report import Point


def draw_roofline(points: Sequence[Point], peaks: Peaks, path: Path) -> None:
    """Draw ``points`` into a PNG file; all their operations count, whichever kind they are.

    Raises `ConfigError` where matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "a plot needs matplotlib: pip install 'octavo[plots]'", param="plot"
        ) from None
    places = [
        (
            (point.work.int_ops + point.work.float_ops) / point.work.num_bytes,
            (point.work.int_ops + point.work.float_ops) / point.seconds / 1e9,
        )
        for point in points
    ]
    low = min(0.25, *(x / 2 for x, _ in places)) if places else 0.25
    high = max(4096.0, *(x * 2 for x, _ in places)) if places else 4096.0
    intensity = np.geomspace(low, high, 256)
    figure = Figure(figsize=(7.2, 4.8), layout="constrained")
    axes = figure.add_subplot()
    for limit, name, style in (
        (peaks.dot_gops, f"byte dot {peaks.dot_gops:,.0f} GOPS", "-"),
        (peaks.fma_gflops, f"float32 {peaks.fma_gflops:,.0f} GFLOPS", "--"),
    ):
        roof = np.minimum(peaks.read_gb * intensity, limit)
        axes.plot(intensity, roof, style, color="black", linewidth=1, label=name)
    for i, (point, (x, y)) in enumerate(zip(points, places, strict=True)):
        marker = "os^v"[i // 10 % 4]  # there are ten colours
        axes.plot([x], [y], marker=marker, linestyle="none", label=point.name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("operations a byte")
    axes.set_ylabel("10⁹ operations a second")
    axes.set_title(f"{peaks.num_threads} threads, {peaks.read_gb:.1f} GB/s", fontsize=10)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", fontsize=7, ncols=min(3, 1 + len(points) // 4))
    figure.savefig(path, dpi=110, format="png")
