"""From the answers of a run to vLLM's figures, by its definitions, and cached tokens besides."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from octavo.bench.serve.client import Answer
    from octavo.bench.serve.run import Run
    from octavo.bench.serve.settings import Reporting


def result_fields(run: Run, reporting: Reporting) -> dict[str, Any]:
    """Return the figures of a run; what nothing was measured of is None.

    Totals and times are of the answers that succeeded; a rate divides by the whole duration.
    """
    answers = run.answers
    succeeded = [answer for answer in answers if not answer.error]
    num_input = sum(answer.prompt_len for answer in succeeded)
    num_output = sum(answer.output_len for answer in succeeded)
    goals = reporting.goals()
    num_good = sum(is_good(answer, goals) for answer in succeeded)
    fields = {
        "duration": run.duration,
        "completed": len(succeeded),
        "failed": len(answers) - len(succeeded),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(succeeded) / run.duration,
        "request_goodput": num_good / run.duration if goals else None,
        "output_throughput": num_output / run.duration,
        "total_token_throughput": (num_input + num_output) / run.duration,
        "max_output_tokens_per_s": max_tokens_per_second(succeeded),
        "max_concurrent_requests": max_concurrent(succeeded),
        **_cache_fields(succeeded),
    }
    if run.is_interrupted:
        fields["unfinished"] = run.num_unfinished
    for metric in reporting.metrics():
        fields |= statistics(metric, values_of(metric, succeeded), reporting.percentiles())
    if reporting.save_detailed:
        fields |= detailed_fields(run)
    return fields


def values_of(metric: str, answers: Sequence[Answer]) -> list[float]:
    """Return the seconds that a metric's statistics are of."""
    if metric == "itl":
        return [seconds for answer in answers for seconds in answer.itls]
    if metric == "tpot":
        return [tpot for answer in answers if (tpot := answer.tpot) is not None]
    if metric == "ttft":
        return [answer.ttft for answer in answers]
    if metric == "e2el":
        return [answer.latency for answer in answers]
    if metric == "client_queue_time":
        return [answer.start - answer.arrival for answer in answers]
    assert metric == "e2el_including_client_queue"
    return [answer.end - answer.arrival for answer in answers]


def statistics(
    metric: str, seconds: Sequence[float], percentiles: Sequence[float]
) -> dict[str, float | None]:
    """Return mean, median, (population's) standard deviation and percentiles, in ms."""
    names = ["mean", "median", "std", *(f"p{q:.10g}" for q in percentiles)]
    if seconds:
        ms = 1e3 * np.asarray(seconds)
        values = [np.mean(ms), np.median(ms), np.std(ms), *np.percentile(ms, percentiles)]
    else:
        values = [None] * len(names)
    return {
        f"{name}_{metric}_ms": None if value is None else float(value)
        for name, value in zip(names, values, strict=True)
    }


def is_good(answer: Answer, goals: Mapping[str, float]) -> bool:
    """Whether an answer met every goal, in ms; one token alone has a TPOT of 0."""
    taken = {"ttft": answer.ttft, "tpot": answer.tpot or 0.0, "e2el": answer.latency}
    return all(1e3 * taken[metric] <= most for metric, most in goals.items())


def max_tokens_per_second(answers: Sequence[Answer]) -> float:
    """Return the tokens of the best whole second, counted from the first request's start.

    Where an answer has fewer chunks than tokens, each chunk counts for its share.
    """
    if not answers:
        return 0.0
    begin = min(answer.start for answer in answers)
    end = max(answer.end for answer in answers)
    per_second = np.zeros(math.floor(end - begin) + 1)
    for answer in answers:
        if answer.token_times:
            share = answer.output_len / len(answer.token_times)
            seconds = (np.array(answer.token_times) - begin).astype(int)
            np.add.at(per_second, seconds, share)
    return float(per_second.max())


def max_concurrent(answers: Sequence[Answer]) -> int:
    """Return the most requests that were open at one moment; who ends makes room first."""
    changes = [(answer.start, 1) for answer in answers] + [(answer.end, -1) for answer in answers]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def _cache_fields(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the prompts' cached tokens, and their share of the prompts that tell."""
    telling = [answer for answer in answers if answer.cached_tokens is not None]
    cached = sum(answer.cached_tokens or 0 for answer in telling)
    num_input = sum(answer.prompt_len for answer in telling)
    return {
        "total_cached_tokens": cached if telling else None,
        "cached_ratio": cached / num_input if num_input else None,
    }


def detailed_fields(run: Run) -> dict[str, list[Any]]:
    """Return lists with an item for each request, in order of arrival, failed ones too; seconds."""
    answers = run.answers
    return {
        "input_lens": [answer.prompt_len for answer in answers],
        "output_lens": [0 if answer.error else answer.output_len for answer in answers],
        "cached_tokens": [answer.cached_tokens for answer in answers],
        "ttfts": [answer.ttft if answer.first else 0.0 for answer in answers],
        "itls": [answer.itls for answer in answers],
        "latencies": [answer.latency if answer.end else 0.0 for answer in answers],
        "start_times": [answer.start - run.begin for answer in answers],
        "queue_times": [answer.start - answer.arrival for answer in answers],
        "generated_texts": [answer.text for answer in answers],
        "errors": [answer.error for answer in answers],
    }
