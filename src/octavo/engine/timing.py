"""Where an engine's time goes: running sums of seconds, one for each part of a step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StepSeconds:
    """The seconds that each part of all steps so far has taken; always counted.

    The parts follow one another, so what is missing to the whole is the caller's.
    """

    schedule: float = 0.0
    build_batch: float = 0.0
    forward: float = 0.0
    """`Backend.execute`, and the copies of forked blocks before it."""
    sample: float = 0.0
    update: float = 0.0
    """Blocks are published, tokens appended, requests ended."""
