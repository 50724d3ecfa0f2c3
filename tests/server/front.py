"""A front for tests: steps a core on a tiny model and tells observers what happened."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from engine.core_harness import make_core
from octavo.cache.policies.arc import ARC
from octavo.engine.stats import RequestStats, StepStats
from octavo.sampling.params import SamplingParams
from octavo.server.metrics import Metrics

if TYPE_CHECKING:
    from octavo.engine.request import Request


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 61, length).tolist()


def ended(**changes: object) -> RequestStats:
    """Return the stats of an invented request that has ended."""
    fields = {
        "request_id": "cmpl-1", "params": SamplingParams(max_tokens=20), "num_prompt_tokens": 50,
        "arrived": 10.0, "queued": 10.25, "scheduled": 10.75, "first_token": 11.25,
        "last_token": 13.25, "ended": 13.5, "waited_for": "prefix", "num_cached_tokens": 32,
        "num_output_tokens": 17, "num_choice_tokens": [17], "num_preemptions": 1,
        "num_recomputed_tokens": 9, "finish_reasons": ["stop"],
    }  # fmt: skip
    return RequestStats(**{**fields, **changes})


class Front:
    """Does what the server's engine thread and loop do together, on one thread."""

    def __init__(self, **settings: object) -> None:
        self.core = make_core(**{"policy": ARC, **settings})
        self.metrics = Metrics(self.core, model_name="tiny")
        self.open: dict[str, tuple[RequestStats, dict[int, Request]]] = {}

    def add(self, name: str, tokens: list[int], **params: object) -> Request:
        asked = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **params})
        now = perf_counter()
        stats = RequestStats(name, asked, len(tokens), arrived=now, queued=now)
        request = self.core.add_request(name, tokens, asked)
        self.open[name] = (stats, {0: request})
        return request

    def step(self) -> None:
        began, recomputed = perf_counter(), self.core.cache.stats.recomputed_tokens
        before = {
            request: request.num_computed_tokens for request in self.core.scheduler.requests()
        }
        touched = self.core.step()
        ended = perf_counter()
        num_prompt = sum(
            min(request.num_computed_tokens, request.num_prompt_tokens) - count
            for request, count in before.items()
            if request.num_computed_tokens > count
            and count < request.num_prompt_tokens
            and not request.is_finished
        )
        for stats, choices in self.open.values():
            if stats.scheduled is None and choices[0].num_cached_tokens is not None:
                stats.scheduled = began
        recomputed_now = self.core.cache.stats.recomputed_tokens - recomputed
        num_output = 0
        for request in touched:
            stats, choices = self.open[request.request_id]
            choices[request.choice] = request
            if request.output_token_ids:
                num_output += 1
                if stats.first_token is None:
                    stats.first_token = ended
                    self.metrics.on_first_token(stats, ended - stats.arrived)
                elif request.num_output_tokens > 1:
                    self.metrics.on_token_gap(ended - began, 1)
                stats.last_token = ended
        self.metrics.on_step(StepStats(began, ended, num_prompt, num_output, recomputed_now))
        for name in {request.request_id for request in touched}:
            stats, choices = self.open[name]
            if len(choices) == stats.params.n and all(c.is_finished for c in choices.values()):
                self.end(name)

    def abort(self, name: str) -> RequestStats:
        self.core.abort(name)
        return self.end(name)

    def end(self, name: str) -> RequestStats:
        stats, choices = self.open.pop(name)
        stats.ended = perf_counter()
        stats.num_cached_tokens = choices[0].num_cached_tokens or 0
        stats.num_choice_tokens = [choice.num_output_tokens for choice in choices.values()]
        stats.num_output_tokens = sum(stats.num_choice_tokens)
        stats.num_preemptions = sum(choice.num_preemptions for choice in choices.values())
        stats.finish_reasons = [choice.finish_reason.value for choice in choices.values()]
        stats.error = choices[0].error
        self.metrics.on_finished(stats)
        return stats

    def run(self) -> None:
        while self.core.has_requests:
            self.step()

    def samples(self) -> dict[str, float]:
        """Scrape, parse, and return every value by its name and labels, ``model_name`` left out."""
        values: dict[str, float] = {}
        body, _ = self.metrics.render()
        for family in text_string_to_metric_families(body.decode()):
            for sample in family.samples:
                labels = [f"{k}={v}" for k, v in sample.labels.items() if k != "model_name"]
                name = sample.name + (f"{{{','.join(labels)}}}" if labels else "")
                assert name not in values, f"{name} is told twice"
                values[name] = sample.value
        return values
