"""Prometheus metrics of a server: what is counted as requests and steps go by, and `/metrics`.

vLLM's names, labels and buckets, so that its dashboards work as they are, and a family of our own.
docs/serving-metrics.md says what each one counts. What the engine counts anyway is read at a scrape
(`engine_metrics.py`); here is what only an observer of events can know. Events come on the event
loop's thread; `Metrics.render` may be called on any, and may see the half of an event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from octavo.engine.request import FinishReason
from octavo.server.engine_metrics import EngineMetrics
from octavo.server.families import FamilyMaker, Histogram, RecentRate
from octavo.server.http_metrics import HttpMetrics
from octavo.server.phases import phase_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

    from octavo.engine.core import EngineCore
    from octavo.engine.stats import RequestStats, StepStats

_FIRST_TOKEN: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_TOKEN: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
_REQUEST: Final = (
    *(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    *(120, 240, 480, 960, 1920, 7680),
)
_STEP_TOKENS: Final = (1, *(2**power for power in range(3, 15)))
_CHOICES: Final = (1, 2, 5, 10, 20)
_LENGTH: Final = ()
"""1, 2, 5, 10 and so on, up to the longest request that the engine takes."""

HISTOGRAMS: Final[dict[str, tuple[str, tuple[float, ...]]]] = {
    "time_to_first_token_seconds": ("From arrival to the first token.", _FIRST_TOKEN),
    "inter_token_latency_seconds": ("From one token of a choice to its next.", _TOKEN),
    "request_time_per_output_token_seconds": (
        "Mean time of a token after the first, of each request.",
        _TOKEN,
    ),
    "e2e_request_latency_seconds": ("From arrival to the end.", _REQUEST),
    "request_queue_time_seconds": ("From the engine's hands to the first step.", _REQUEST),
    "request_prefill_time_seconds": ("From the first step to the first token.", _REQUEST),
    "request_decode_time_seconds": ("From the first token to the last.", _REQUEST),
    "request_inference_time_seconds": ("From the first step to the last token.", _REQUEST),
    "request_prompt_tokens": ("Tokens of the prompt.", _LENGTH),
    "request_generation_tokens": ("Tokens of the answer, all choices together.", _LENGTH),
    "request_max_num_generation_tokens": ("Tokens of the longest choice.", _LENGTH),
    "request_params_n": ("The parameter n.", _CHOICES),
    "request_params_max_tokens": (
        "The parameter max_tokens, or the room behind the prompt where none was given.",
        _LENGTH,
    ),
    "request_prefill_kv_computed_tokens": ("Prompt tokens that were not cached.", _LENGTH),
    "iteration_tokens_total": ("Prompt and output tokens of a step.", _STEP_TOKENS),
}
"""vLLM's histograms, ``vllm:`` left out: what each observes, and its buckets."""

ALIASES: Final = {"time_per_output_token_seconds": "inter_token_latency_seconds"}
"""What a histogram was called before, and is still in dashboards."""


class Metrics(Collector):
    """Observes an engine; `render` is the body of ``/metrics``."""

    def __init__(
        self, core: EngineCore, *, model_name: str, registry: CollectorRegistry | None = None
    ) -> None:
        """Register in ``registry``, a new one unless given. ``model_name`` is a label."""
        self._core = core
        self._vllm = FamilyMaker(model_name=model_name)
        self._octavo = FamilyMaker()
        lengths = _one_two_five(core.max_model_len)
        self._histograms = {
            name: Histogram(bounds or lengths) for name, (_, bounds) in HISTOGRAMS.items()
        }
        self._num_finished = {reason.value: 0 for reason in FinishReason}
        self._num_output_tokens = 0
        self._prefill_rate = RecentRate()
        self._decode_rate = RecentRate()
        self.http = HttpMetrics()
        """For `WatchHttp`, the middleware."""
        self.registry = CollectorRegistry() if registry is None else registry
        self.registry.register(self)
        self.registry.register(EngineMetrics(core, model_name))
        self.registry.register(self.http)
        ProcessCollector(registry=self.registry)

    def render(self) -> tuple[bytes, str]:
        """Return the exposition and its content type: Prometheus' text format 0.0.4."""
        return generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4

    # -- events -----------------------------------------------------------------------------------

    def on_step(self, step: StepStats) -> None:
        """Count a step."""
        self._num_output_tokens += step.num_output_tokens
        num_tokens = step.num_prompt_tokens + step.num_output_tokens
        self._histograms["iteration_tokens_total"].observe(num_tokens)
        self._prefill_rate.add(step.num_prompt_tokens, step.began, step.ended)
        self._decode_rate.add(step.num_output_tokens, step.began, step.ended)

    def on_first_token(self, stats: RequestStats, seconds: float) -> None:  # noqa: ARG002
        """Count a request's first token, ``seconds`` after its arrival."""
        self._histograms["time_to_first_token_seconds"].observe(seconds)

    def on_token_gap(self, seconds: float, count: int) -> None:
        """Count ``count`` tokens of one choice that came ``seconds`` after the one before them."""
        self._histograms["inter_token_latency_seconds"].observe(seconds / count, count)

    def on_finished(self, stats: RequestStats) -> None:
        """Count a request, however it ended.

        Every histogram of requests gets one value, so that their counts agree: a phase to which an
        aborted request never came took 0 seconds.
        """
        assert stats.ended is not None, "the request has ended"
        for reason in stats.finish_reasons or ["error" if stats.error else "abort"]:
            self._num_finished[reason] += 1
        seconds = phase_seconds(stats)
        longest = max(stats.num_choice_tokens, default=stats.num_output_tokens)
        max_tokens = stats.params.max_tokens
        if max_tokens is None:
            max_tokens = max(0, self._core.max_model_len - stats.num_prompt_tokens)
        values = {
            "e2e_request_latency_seconds": stats.ended - stats.arrived,
            "request_queue_time_seconds": seconds["queue"],
            "request_prefill_time_seconds": seconds["prefill"],
            "request_decode_time_seconds": seconds["decode"],
            "request_inference_time_seconds": seconds["prefill"] + seconds["decode"],
            "request_time_per_output_token_seconds": seconds["decode"] / max(1, longest - 1),
            "request_prompt_tokens": stats.num_prompt_tokens,
            "request_generation_tokens": stats.num_output_tokens,
            "request_max_num_generation_tokens": longest,
            "request_params_n": stats.params.n,
            "request_params_max_tokens": max_tokens,
            "request_prefill_kv_computed_tokens": (
                0 if stats.scheduled is None else stats.num_computed_tokens
            ),
        }
        for name, value in values.items():
            self._histograms[name].observe(value)

    # -- a scrape ---------------------------------------------------------------------------------

    def collect(self) -> Iterable[Metric]:
        """Return the families as they are now."""
        vllm, octavo = self._vllm, self._octavo
        for name, (text, _) in HISTOGRAMS.items():
            yield vllm.histogram(f"vllm:{name}", text, self._histograms[name])
        for name, now in ALIASES.items():
            yield vllm.histogram(f"vllm:{name}", HISTOGRAMS[now][0], self._histograms[now])
        yield vllm.counter("vllm:generation_tokens", "Tokens generated.", self._num_output_tokens)
        yield vllm.counters(
            "vllm:request_success",
            "Answers that ended, each choice counted, by why.",
            ("finished_reason",),
            {(reason,): count for reason, count in self._num_finished.items()},
        )
        for what, rate in (("prefill", self._prefill_rate), ("decode", self._decode_rate)):
            yield octavo.gauge(
                f"octavo_{what}_tokens_per_second",
                f"Tokens of {what} a second over the last seconds.",
                rate.per_second(),
            )


def _one_two_five(most: int) -> list[float]:
    """Return 1, 2, 5, 10, 20, 50 and so on, up to ``most``."""
    bounds: list[float] = []
    power = 1
    while power <= most:
        bounds += [factor * power for factor in (1, 2, 5) if factor * power <= most]
        power *= 10
    return bounds
