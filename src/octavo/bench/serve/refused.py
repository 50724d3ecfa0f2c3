"""Flags of vLLM's bench serve that are not here: each is refused, with what there is instead."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from octavo.errors import ConfigError


def _refused(default: Any, instead: str) -> Any:
    return field(default=default, metadata={"help": instead, "option": {"hidden": True}})


@dataclass(frozen=True)
class Refused:
    """Raises `ConfigError` for the first that is given."""

    profile: bool = _refused(
        False,
        "no server is asked to profile itself: octavo bench latency says where a step's time "
        "goes, and octavo_step_seconds in /metrics while a server runs",
    )
    probe_request_rate: float = _refused(
        0.0,
        "there are no probes beside the load: run a second octavo bench serve with "
        "--request-rate and --output-len 1 meanwhile",
    )
    plot_timeline: bool = _refused(
        False,
        "there is no timeline: --save-detailed has each request's times in the JSON, and --plot "
        "draws latencies and throughput",
    )
    timeline_itl_thresholds: str | None = _refused(None, "there is no timeline to colour")
    plot_dataset_stats: bool = _refused(
        False, "data sets are not drawn: --save-detailed has each request's lengths in the JSON"
    )

    def __post_init__(self) -> None:
        for flag in fields(self):
            if getattr(self, flag.name) != flag.default:
                name = "--" + flag.name.replace("_", "-")
                raise ConfigError(f"{name} is vLLM's; {flag.metadata['help']}", param=flag.name)
