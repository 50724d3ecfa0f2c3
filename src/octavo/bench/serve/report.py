"""Results as people and programs want them: JSON with its settings, files, CSV, a few lines."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.bench.serve.metrics import result_fields
from octavo.bench.serve.settings import pairs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from octavo.bench.serve.run import LoadTest, Run
    from octavo.bench.serve.settings import Reporting

_MOST_ERRORS = 5


def to_json(
    run: Run, model: str, test: LoadTest, reporting: Reporting, now: datetime
) -> dict[str, Any]:
    """Return all there is to say of a run: vLLM's fields, its settings first."""
    traffic, target = test.traffic, test.target
    ramp = {
        name: getattr(traffic, name)
        for name in ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
        if traffic.ramp_up_strategy is not None
    }
    return {
        "date": now.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": target.backend,
        "backend": target.backend,
        "label": reporting.label,
        "model_id": target.model or model,
        "tokenizer_id": test.dataset.tokenizer,
        "num_prompts": len(run.answers) + run.num_unfinished,
        **pairs(reporting.metadata, "metadata"),
        "request_rate": _number(traffic.request_rate),
        "burstiness": _number(traffic.burstiness),
        "max_concurrency": run.max_concurrency,
        **ramp,
        "dataset_name": test.dataset.dataset_name,
        "seed": traffic.seed,
        **result_fields(run, reporting),
    }


def _number(value: float) -> float | str:
    """Return a rate as JSON can hold it."""
    return "inf" if math.isinf(value) else value


def save(results: Sequence[dict[str, Any]], reporting: Reporting) -> list[Path]:
    """Write the results where they are wanted; several for one file are a line each."""
    if not (reporting.save_result or reporting.append_result):
        return []
    append = reporting.append_result
    paths: list[Path] = []
    for result in results:
        path = result_path(result, reporting)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if append or path in paths else "w", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        paths.append(path)
    return list(dict.fromkeys(paths))


def result_path(result: dict[str, Any], reporting: Reporting) -> Path:
    """Return the file of a result: the name that was asked for, or vLLM's."""
    folder = Path(reporting.result_dir or ".")
    if reporting.result_filename:
        return folder / reporting.result_filename
    rate = f"{result['request_rate']}qps"
    if "ramp_up_strategy" in result:
        start, end = result["ramp_up_start_rps"], result["ramp_up_end_rps"]
        rate = f"ramp-up-{result['ramp_up_strategy']}-{start}qps-{end}qps"
    limit = result["max_concurrency"]
    concurrency = "" if limit is None else f"-concurrency{limit}"
    model = Path(result["model_id"]).name
    label = reporting.label or result["backend"]
    return folder / f"{label}-{rate}{concurrency}-{model}-{result['date']}.json"


def write_csv(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Write a row a run, of the fields that are single values."""
    columns = [name for name, value in results[0].items() if not isinstance(value, list)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(results)


def lines(result: dict[str, Any], goals: dict[str, float]) -> Iterator[str]:
    """Yield the figures in words, but for the statistics."""
    if result["max_concurrency"] is not None:
        yield f"at most {result['max_concurrency']} at a time:"
    left = f", {result['unfinished']} unfinished" if "unfinished" in result else ""
    yield (
        f"requests: {result['completed']} completed, {result['failed']} failed{left} in "
        f"{result['duration']:.2f} s: {result['request_throughput']:.2f} a second, "
        f"{result['max_concurrent_requests']} at most at a time"
    )
    if goals:
        wanted = ", ".join(f"{metric} {most:g} ms" for metric, most in goals.items())
        yield f"good requests: {result['request_goodput']:.2f} a second ({wanted})"
    yield (
        f"tokens: {result['total_input_tokens']:,} in, {result['total_output_tokens']:,} out: "
        f"{result['output_throughput']:,.1f} tok/s out, "
        f"{result['max_output_tokens_per_s']:,.0f} in the best second, "
        f"{result['total_token_throughput']:,.1f} tok/s in and out"
    )
    if result["total_cached_tokens"] is not None:
        share = result["cached_ratio"]
        told = "" if share is None else f" ({100 * share:.1f} % of the prompts)"
        yield f"cached: {result['total_cached_tokens']:,} tokens{told}"


def statistics_rows(result: dict[str, Any], reporting: Reporting) -> Iterator[list[str]]:
    """Yield a metric's name and its statistics in ms, in the order of the JSON."""
    for metric in reporting.metrics():
        ending = f"_{metric}_ms"
        values = [value for name, value in result.items() if name.endswith(ending)]
        yield [metric, *("-" if value is None else f"{value:,.2f}" for value in values)]


def statistics_columns(reporting: Reporting) -> list[str]:
    """Return what `statistics_rows` are."""
    return ["ms", "mean", "median", "std", *(f"p{q:.10g}" for q in reporting.percentiles())]


def error_lines(run: Run) -> Iterator[str]:
    """Yield the errors, the commonest first, and how often each was seen."""
    counts = Counter(answer.error for answer in run.answers if answer.error)
    for error, count in counts.most_common(_MOST_ERRORS):
        yield f"{count} failed: {error}"
    if len(counts) > _MOST_ERRORS:
        yield f"{len(counts) - _MOST_ERRORS} more kinds of errors; --save-detailed keeps all"
