"""What a replay found, for people and for programs: a table, JSON, CSV, and what the words mean."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING

from octavo.simulate.experiment import INFINITE, MIN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TextIO

    from octavo.simulate.experiment import Result

_RULES = {
    "engine": "Through the engine's cache: nothing that a running request holds dies, no block "
    "dies before those that continue it, and a prompt is let go tail first.",
    "forward": "Block by block without a tree, each prompt touched head to tail.",
    "reverse": "Block by block without a tree, each prompt touched tail first.",
    "keys": "Single keys, each asked for alone: no prompt, no prefix.",
}
_WORDS = {
    MIN: "min: the most that a cache could hit that knew the future and need not take in "
    "every block.",
    INFINITE: "infinite: a cache that forgets nothing.",
}
COLUMNS = ("capacity", "policy", "hit rate %", "of tokens %", "hits", "evictions", "refused")


def definitions(results: Sequence[Result]) -> list[str]:
    """Return the sentences without which the numbers mean nothing."""
    sentences = []
    if any(result.counts.requests for result in results):
        sentences.append(
            "Hit rate: of all prompt blocks, those found cached together with every block before "
            "them in the prompt (prefix-contiguous), each request counted once, at its admission."
        )
    if any(result.rules == "keys" for result in results):
        sentences.append("Hit rate of single keys: of all references, those to a cached key.")
    sentences += [text for rules, text in _RULES.items() if _any(results, rules)]
    sentences += [text for name, text in _WORDS.items() if any(r.policy == name for r in results)]
    if any(result.counts.refused for result in results):
        sentences.append("refused: prompts longer than the cache; all their blocks are misses.")
    if any(result.counts.let_go_early for result in results):
        most = max(result.counts.let_go_early for result in results)
        sentences.append(
            f"Where the cache had no room for so many at a time, up to {most:,} requests let their "
            "blocks go before their turn."
        )
    return sentences


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Return the cells of one trace's table, under `COLUMNS`."""
    return [
        (
            "" if result.capacity is None else f"{result.capacity:,}",
            result.policy,
            f"{100 * result.hit_rate:.2f}",
            "" if result.token_hit_rate is None else f"{100 * result.token_hit_rate:.2f}",
            f"{result.counts.hits:,}",
            "" if result.policy in _WORDS else f"{result.counts.evictions:,}",
            f"{result.counts.refused:,}" if result.counts.refused else "",
        )
        for result in results
    ]


def to_json(results: Sequence[Result], settings: Mapping[str, object]) -> str:
    """Return all results as one JSON list, each with the ``settings`` that it was got under."""
    return json.dumps([{**result.record(), **settings} for result in results], indent=1)


def write_csv(results: Sequence[Result], file: TextIO, settings: Mapping[str, object]) -> None:
    """Write a header and a line for each result, with the ``settings`` that it was got under."""
    records = [{**result.record(), **settings} for result in results]
    writer = csv.DictWriter(file, fieldnames=list(records[0]) if records else [])
    writer.writeheader()
    writer.writerows(records)


def _any(results: Sequence[Result], rules: str) -> bool:
    return any(result.rules == rules for result in results)
