"""How long the compiled code has run: the ticks of each phase, and the seconds of the calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from octavo.backends.cpu.plan import PHASES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class PhaseSeconds(NamedTuple):
    """What a phase took on thread 0."""

    work: float
    waiting: float
    """For the other threads at the phase's end, and to wake up at its beginning."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums over forward passes and choices of tokens."""

    ticks: NDArray[np.int64]
    """[num_phases, 2]: of thread 0's own work, and of its waiting."""
    forward_seconds: float
    """Of the calls of the compiled function."""
    sampling_seconds: float

    def __sub__(self, earlier: Counters) -> Counters:
        return Counters(
            self.ticks - earlier.ticks,
            self.forward_seconds - earlier.forward_seconds,
            self.sampling_seconds - earlier.sampling_seconds,
        )

    def phase_seconds(self) -> dict[str, PhaseSeconds]:
        """Return each phase's part of `forward_seconds`, by its name in `PHASES`.

        A tick lasts what the CPU says; here it is taken to last what makes all of them together the
        forward seconds. All 0 on a CPU that has no counter.
        """
        total = int(self.ticks.sum())
        rate = self.forward_seconds / total if total > 0 else 0.0
        return {
            name: PhaseSeconds(float(work) * rate, float(waiting) * rate)
            for name, (work, waiting) in zip(PHASES, self.ticks, strict=True)
        }
