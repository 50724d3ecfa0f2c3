"""What every engine is asked to do: the work items, their prompts, and the figure each one gives.

Imports the standard library only: engines that live in a Python of their own run it too.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any, Literal

FIRST_ORDINARY_ID = 1000
"""Random prompts avoid lower ids: among them are the control tokens of most vocabularies."""


@dataclass(frozen=True, slots=True)
class Work:
    """So many prompts, so long, with so many new tokens each, and what of it is counted."""

    name: str
    figure: Literal["prefill", "decode", "total"]
    """prefill: prompt tokens a second up to the first new one. decode: tokens after the first, a
    second. total: prompt and new tokens of all requests a second, from start to end."""
    num_prompts: int
    input_len: int
    output_len: int
    repeats: int = 1
    """Measurements a process makes, after one that is not counted; their median is its figure."""

    def tokens_per_second(self, first_token_s: float, total_s: float) -> float:
        """Return the figure, from the seconds to the first new token and to the last."""
        if self.figure == "prefill":
            return self.input_len / first_token_s
        if self.figure == "decode":
            return (self.output_len - 1) / (total_s - first_token_s)
        return self.num_prompts * (self.input_len + self.output_len) / total_s

    def prompts(self, seed: int, vocab_size: int) -> list[list[int]]:
        """Return the prompts: random ids, other ones for every seed, so that no cache helps."""
        rng = random.Random(f"{self.name}/{seed}")
        low = min(FIRST_ORDINARY_ID, vocab_size // 2)
        return [
            [rng.randrange(low, vocab_size) for _ in range(self.input_len)]
            for _ in range(self.num_prompts)
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the fields, for `Work(**fields)` in another process."""
        return asdict(self)


WORKS = {
    work.name: work
    for work in (
        Work("decode", "decode", num_prompts=1, input_len=128, output_len=128, repeats=3),
        Work("prefill", "prefill", num_prompts=1, input_len=512, output_len=1, repeats=3),
        Work("throughput", "total", num_prompts=32, input_len=128, output_len=32),
        Work("prefill-4k", "prefill", num_prompts=1, input_len=4096, output_len=1),
        Work("decode-4k", "decode", num_prompts=1, input_len=4096, output_len=64),
    )
}
