"""The picture: hit rate against capacity, one panel a trace. Needs the extra ``plots``."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from octavo.errors import ConfigError
from octavo.simulate.experiment import INFINITE, MIN

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from octavo.simulate.experiment import Result

_PANEL = (5.6, 4.0)  # inches


def check_can_plot() -> None:
    """Raise `ConfigError` where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise ConfigError("a plot needs matplotlib: pip install 'octavo[plots]'", param="plot")


def plot(results: Sequence[Result], path: Path) -> None:
    """Draw ``results`` into a file; the ending says the format.

    Raises `ConfigError` where matplotlib is missing or does not know the ending.
    """
    check_can_plot()
    from matplotlib.figure import Figure

    traces = list(dict.fromkeys(result.trace for result in results))
    width, height = _PANEL
    figure = Figure(figsize=(width * len(traces), height), layout="constrained")
    for place, trace in enumerate(traces, 1):
        axes = figure.add_subplot(1, len(traces), place)
        _draw(axes, [result for result in results if result.trace == trace])
        axes.set_title(trace)
    try:
        figure.savefig(path, dpi=110)
    except ValueError as error:
        raise ConfigError(f"cannot draw into {path}: {error}", param="plot") from None


def _draw(axes: Any, results: Sequence[Result]) -> None:
    """Draw one trace: a line a policy, MIN in black, the infinite cache as a dashed line."""
    for policy in dict.fromkeys(result.policy for result in results):
        line = sorted(
            (result.capacity or 0, 100 * result.hit_rate)
            for result in results
            if result.policy == policy
        )
        if policy == INFINITE:
            axes.axhline(line[0][1], color="grey", linestyle="--", linewidth=1, label=policy)
            continue
        style = {"color": "black", "linestyle": ":"} if policy == MIN else {}
        axes.plot(*zip(*line, strict=True), marker="o", markersize=3, label=policy, **style)
    axes.set_xscale("log")
    axes.set_xlabel("capacity (blocks)")
    axes.set_ylabel("hit rate (%)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
