"""What a bench of a server can be told: each field is a flag, checked where all are known.

Flags are those of ``vllm bench serve``. Imports nothing heavy: `octavo --help` reads the flags.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import ConfigError, shown

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BACKENDS = {"openai": COMPLETIONS, "openai-chat": CHAT}
DATASETS = ("random", "prefix_repetition", "sharegpt", "timed_trace", "custom")
METRICS = ("ttft", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue")
GOALS = ("ttft", "tpot", "e2el")
RAMPS = ("linear", "exponential")
NUM_PROMPTS = 100


def _flag(default: Any, help_text: str, *names: str, **option: Any) -> Any:
    """Return a field that is a flag of its own name, or of ``names``."""
    return field(default=default, metadata=_described(help_text, *names, **option))


def _described(help_text: str, *names: str, **option: Any) -> dict[str, Any]:
    """Return the metadata of a flag, as `octavo.cli.options.settings_options` reads it."""
    return {"help": help_text, "names": names, "option": option}


@dataclass(frozen=True)
class Target:
    """Whom the requests go to, and what stands in front of their bodies."""

    backend: str = _flag("openai", f"The kind of body: {' or '.join(BACKENDS)}.")
    base_url: str | None = _flag(None, "Where the server is, instead of host and port.")
    host: str = _flag("127.0.0.1", "The server's host.")
    port: int = _flag(8000, "The server's port.", min=1, max=65535)
    endpoint: str | None = _flag(None, "The path. [default: the backend's]")
    model: str | None = _flag(
        None, "The model's name. [default: the server's first]", "--model", "-m"
    )
    served_model_name: str | None = _flag(None, "The name in the bodies, where it is another.")
    header: list[str] = field(
        default_factory=list, metadata=_described("Headers to send.", metavar="KEY=VALUE...")
    )
    api_key: str | None = _flag(None, "Sent as a bearer token.", envvar="OPENAI_API_KEY")
    request_id_prefix: str | None = _flag(
        None, "What X-Request-Id begins with. [default: bench- and random digits]"
    )

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise _unknown("backend", self.backend, BACKENDS)
        if self.base_url and not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"base_url is {shown(self.base_url)}; begin it with http:// or https://",
                param="base_url",
            )
        self.headers()

    @property
    def is_chat(self) -> bool:
        """Whether bodies hold messages, not a prompt."""
        return self.backend == "openai-chat"

    @property
    def root(self) -> str:
        """The URL before any path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (self.base_url or f"http://{host}:{self.port}").rstrip("/")

    @property
    def url(self) -> str:
        """Where every request goes. A /v1 that the base ends in is not said twice."""
        path = "/" + (self.endpoint or BACKENDS[self.backend]).lstrip("/")
        return (self.root.removesuffix("/v1") if path.startswith("/v1/") else self.root) + path

    @property
    def models_url(self) -> str:
        """Where the server says which models it has."""
        return self.root.removesuffix("/v1") + "/v1/models"

    def headers(self) -> dict[str, str]:
        """Return the headers of a request; what is given replaces what would be sent."""
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {"Content-Type": "application/json", **key, **pairs(self.header, "header")}


@dataclass(frozen=True)
class DatasetSettings:
    """What is asked. Lengths are tokens."""

    dataset_name: str = _flag("random", f"One of {', '.join(DATASETS)}.")
    dataset_path: str | None = _flag(None, "The file of sharegpt, timed_trace or custom.")
    num_prompts: int = _flag(NUM_PROMPTS, "Requests of a run; a file may have fewer.", min=1)
    input_len: int | None = _flag(None, "Short for --random-input-len.", min=1)
    output_len: int | None = _flag(None, "Every answer's length, whatever the data set.", min=1)
    random_input_len: int = _flag(1024, "Tokens of a prompt, its prefix aside.", min=1)
    random_output_len: int = _flag(128, "Tokens of an answer.", min=1)
    random_range_ratio: float = _flag(
        0.0, "Lengths are drawn from 1 - this to 1 + this, times the length.", min=0.0
    )
    random_prefix_len: int = _flag(0, "Tokens that all prompts begin with.", min=0)
    prefix_repetition_prefix_len: int = _flag(256, "Tokens of a prefix.", min=0)
    prefix_repetition_suffix_len: int = _flag(256, "Tokens behind it, of each prompt.", min=1)
    prefix_repetition_num_prefixes: int = _flag(10, "Prefixes, of equally many prompts.", min=1)
    prefix_repetition_output_len: int = _flag(128, "Tokens of an answer.", min=1)
    sharegpt_output_len: int | None = _flag(
        None, "Tokens of an answer. [default: the recorded answer's]", min=1
    )
    custom_output_len: int | None = _flag(
        None, "Tokens of an answer. [default: the line's output_tokens, or 256]", min=1
    )
    max_total_len: int | None = _flag(
        None,
        "Leave out what has more tokens, prompt and answer. [default: 2048 for sharegpt]",
        min=2,
    )
    trace_format: str | None = _flag(None, "As of `octavo simulate --format`.")
    time_scale: float = _flag(1.0, "Times the trace's times: 0.1 is ten times as fast.", min=0.0)
    self_timed: bool | None = _flag(
        None, "The trace's own times, not --request-rate. [default: so for timed_trace]"
    )
    vocab_size: int = _flag(49152, "Random ids are below this, above SmolLM2's 17 special ones.")
    tokenizer: str | None = _flag(
        None, "A model of Octavo's whose tokenizer makes text of ids and counts text."
    )

    def __post_init__(self) -> None:
        name = self.dataset_name
        if name not in DATASETS:
            raise _unknown("dataset_name", name, DATASETS)
        made = name in ("random", "prefix_repetition")
        if made != (self.dataset_path is None):
            remedy = "leave it out" if made else "name its file"
            raise ConfigError(f"dataset_path with {name}: {remedy}", param="dataset_path")
        if self.random_range_ratio >= 1:
            raise ConfigError(
                f"random_range_ratio is {self.random_range_ratio}; it must be below 1, "
                "or a length could be 0",
                param="random_range_ratio",
            )
        if self.self_timed is not None and name != "timed_trace":
            raise ConfigError(
                "self_timed is for timed_trace only: leave it out", param="self_timed"
            )
        _check_finite("time_scale", self.time_scale)

    @property
    def is_self_timed(self) -> bool:
        """Whether arrivals come from the data."""
        return self.dataset_name == "timed_trace" and self.self_timed is not False


@dataclass(frozen=True)
class Traffic:
    """When requests come, and how many at a time."""

    request_rate: float = _flag(math.inf, "Requests a second; inf sends all at once.")
    burstiness: float = _flag(
        1.0, "Shape of the gamma intervals: 1 is Poisson, less is burstier, inf is even."
    )
    ramp_up_strategy: str | None = _flag(None, f"How the rate changes: {' or '.join(RAMPS)}.")
    ramp_up_start_rps: float | None = _flag(None, "The rate of the first request.")
    ramp_up_end_rps: float | None = _flag(None, "The rate of the last request.")
    max_concurrency: str | None = _flag(
        None, "Requests at a time; a list such as 1,4,16 makes a run of each."
    )
    num_warmups: int = _flag(
        0, "Copies of one more request, sent before each run and not counted.", min=0
    )
    ready_check_timeout_sec: float = _flag(
        0.0,
        "Seconds in which one request must succeed before the rest is sent; 0 sends none.",
        min=0.0,
    )
    seed: int = _flag(0, "Of prompts, lengths, order and arrivals.", min=0)

    def __post_init__(self) -> None:
        for name in ("request_rate", "burstiness", "ramp_up_start_rps", "ramp_up_end_rps"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value}; it must be above 0", param=name)
        ends = (self.ramp_up_start_rps, self.ramp_up_end_rps)
        if self.ramp_up_strategy is None:
            if ends != (None, None):
                raise ConfigError("a ramp needs --ramp-up-strategy", param="ramp_up_strategy")
        elif self.ramp_up_strategy not in RAMPS:
            raise _unknown("ramp_up_strategy", self.ramp_up_strategy, RAMPS)
        elif None in ends or math.inf in ends:
            raise ConfigError(
                "a ramp needs two finite rates: --ramp-up-start-rps and --ramp-up-end-rps",
                param="ramp_up_strategy",
            )
        elif self.request_rate != math.inf:
            raise ConfigError(
                "a ramp says the rate: leave out --request-rate", param="request_rate"
            )
        self.concurrencies()

    def concurrencies(self) -> list[int | None]:
        """Return the limit of each run; None is no limit."""
        if self.max_concurrency is None:
            return [None]
        words = [word.strip() for word in self.max_concurrency.split(",")]
        if not all(word.isdecimal() and word.strip("0") and len(word) < 10 for word in words):
            raise ConfigError(
                f"max_concurrency is {shown(self.max_concurrency)}; it must be whole numbers from "
                "1, with commas",
                param="max_concurrency",
            )
        return [int(word) for word in dict.fromkeys(words)]


@dataclass(frozen=True)
class Sampling:
    """What is asked of every answer; what is not given is left to the server."""

    temperature: float | None = _flag(None, "Divides the logits; 0 takes the likeliest.", min=0.0)
    top_p: float | None = _flag(None, "Keep the likeliest that reach this sum.")
    top_k: int | None = _flag(None, "Keep this many of the likeliest.")
    min_p: float | None = _flag(None, "Keep what is at least this fraction as likely.")
    frequency_penalty: float | None = _flag(None, "Off a logit once per occurrence.")
    presence_penalty: float | None = _flag(None, "Off the logits of what occurred.")
    repetition_penalty: float | None = _flag(None, "Makes seen tokens less likely.")
    ignore_eos: bool | None = _flag(
        None, "Answers end by their length only. [default: so for random and timed_trace]"
    )
    logprobs: int | None = _flag(None, "Ask for this many logprobs of each token.", min=0)
    extra_body: str | None = _flag(None, "A JSON object whose fields go into every body.")

    def __post_init__(self) -> None:
        self.extra()

    def extra(self) -> dict[str, Any]:
        """Return the fields of ``extra_body``."""
        try:
            value = json.loads(self.extra_body or "{}")
        except ValueError as error:
            raise ConfigError(f"extra_body is not JSON: {error}", param="extra_body") from None
        if not isinstance(value, dict):
            raise ConfigError(
                f"extra_body is {shown(value)}, not a JSON object", param="extra_body"
            )
        return value

    def fields(self, dataset_name: str, *, is_chat: bool) -> dict[str, Any]:
        """Return the fields of a body, but for model, prompt and length."""
        names = (
            "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty",
            "repetition_penalty",
        )  # fmt: skip
        found = {name: value for name in names if (value := getattr(self, name)) is not None}
        ignore_eos = self.ignore_eos
        if ignore_eos is None:
            ignore_eos = dataset_name in ("random", "timed_trace")
        if ignore_eos:
            found["ignore_eos"] = True
        if self.logprobs is not None:
            found |= (
                {"logprobs": True, "top_logprobs": self.logprobs}
                if is_chat
                else {"logprobs": self.logprobs}
            )
        return {**found, **self.extra()}


@dataclass(frozen=True)
class Reporting:
    """Which figures there are, and where they go."""

    percentile_metrics: str = _flag("ttft,tpot,itl,e2el", f"Some of {', '.join(METRICS)}.")
    metric_percentiles: str = _flag("50,90,99", "Percentiles of each, with commas.")
    goodput: list[str] = field(
        default_factory=list,
        metadata=_described(
            f"Goals of a good request, in ms, of {', '.join(GOALS)}.", metavar="METRIC:MS..."
        ),
    )
    save_result: bool = _flag(False, "Write JSON into a file.", "--save-result")
    save_detailed: bool = _flag(False, "JSON has lists, a value a request.", "--save-detailed")
    append_result: bool = _flag(False, "Add a line of JSON to the file.", "--append-result")
    result_dir: str | None = _flag(None, "The file's folder. [default: this one]")
    result_filename: str | None = _flag(None, "The file's name. [default: made from the settings]")
    metadata: list[str] = field(
        default_factory=list,
        metadata=_described("Fields to add to the JSON.", metavar="KEY=VALUE..."),
    )
    label: str | None = _flag(None, "A name for the results. [default: the backend's]")

    def __post_init__(self) -> None:
        self.metrics()
        self.percentiles()
        self.goals()
        pairs(self.metadata, "metadata")

    def metrics(self) -> list[str]:
        """Return the metrics that statistics are made of."""
        names = [name.strip() for name in self.percentile_metrics.split(",")]
        for name in names:
            if name not in METRICS:
                raise _unknown("percentile_metrics", name, METRICS)
        return names

    def percentiles(self) -> list[float]:
        """Return the percentiles, from 0 to 100."""
        try:
            values = [float(word) for word in self.metric_percentiles.split(",")]
        except ValueError:
            values = [math.nan]
        if not all(0 <= value <= 100 for value in values):
            raise ConfigError(
                f"metric_percentiles is {shown(self.metric_percentiles)}; it must be numbers from "
                "0 to 100, with commas",
                param="metric_percentiles",
            )
        return values

    def goals(self) -> dict[str, float]:
        """Return the milliseconds that a good request may take at most, by metric."""
        found = {}
        for item in self.goodput:
            name, _, value = item.partition(":")
            if name not in GOALS:
                raise _unknown("goodput", name, GOALS)
            try:
                found[name] = float(value)
            except ValueError:
                found[name] = math.nan
            if not found[name] >= 0:
                raise ConfigError(
                    f"goodput has {shown(item)}; it must be such as ttft:200, in milliseconds",
                    param="goodput",
                )
        return found


def pairs(items: list[str], param: str) -> dict[str, str]:
    """Return KEY=VALUE items as a dict; raises `ConfigError` naming ``param``."""
    found = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{param} is {shown(item)}; it must be KEY=VALUE", param=param)
        found[key.strip()] = value.strip()
    return found


def _unknown(param: str, value: str, known: Any) -> ConfigError:
    return ConfigError(f"{param} is {shown(value)}; known are {', '.join(known)}", param=param)


def _check_finite(param: str, value: float) -> None:
    if not math.isfinite(value):
        raise ConfigError(f"{param} is {value}; it must be a finite number", param=param)
