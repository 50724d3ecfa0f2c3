"""What the bench commands share: where results go, the picture, the machine's limits, a bar."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.terminal import harmless, say
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.bench.peaks import Peaks
    from octavo.bench.report import Point

MeasurePeaks = Annotated[
    bool, typer.Option("--peaks/--no-peaks", help="Measure the machine's limits: 1 GiB, 2 seconds.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OutputJson = Annotated[Path | None, typer.Option(help="Write JSON to this file.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw the roofline into this PNG file.")]


def check_outputs(output_json: Path | None, plot: Path | None, peaks: bool) -> None:
    """Refuse before the measurement what would lose its results."""
    for path in (output_json, plot):
        if path is not None and (
            not path.parent.is_dir() or path.is_dir() or not os.access(path.parent, os.W_OK)
        ):
            raise ConfigError(f"{path} cannot be written: its folder is missing or not writable")
    if plot is None:
        return
    if plot.suffix.lower() != ".png":
        raise ConfigError(f"--plot writes PNG files, not {plot.name}; end it in .png")
    if not peaks:
        raise ConfigError("--plot draws the machine's limits; leave out --no-peaks", param="peaks")


def measured_peaks(num_threads: int) -> "Peaks":
    """Return the machine's limits, measured now, with as many threads as the engine had."""
    from octavo.bench.peaks import measure_peaks

    return measure_peaks(num_threads)


def deliver(
    fields: dict[str, Any], lines: Sequence[str], as_json: bool, output_json: Path | None
) -> None:
    """Write the JSON where it is wanted; print it, or else the lines."""
    if output_json is not None:
        output_json.write_text(json.dumps(fields, indent=4) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(fields))
        return
    for line in lines:
        print(line)


def draw(points: "Sequence[Point]", limits: "Peaks | None", path: Path | None) -> None:
    """Draw the roofline if a file is given."""
    if path is None:
        return
    if limits is None:
        say(f"{harmless(path.name)} is not drawn: there are no limits")
        return
    from octavo.bench.roofline import draw_roofline

    draw_roofline(points, limits, path)


@contextmanager
def progress(unit: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr if that is a terminal; yields what moves it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(unit, total=total)
        yield lambda count: bar.advance(task, count)
