"""Logs: one line a request that says what it cost and why it took so long; never what it said.

The same facts are `timings`, for the client that asks for them.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Final

from octavo.errors import ConfigError, shown

if TYPE_CHECKING:
    from octavo.engine.stats import RequestStats

FORMATS: Final = ("auto", "json", "console")
LEVELS: Final = ("debug", "info", "warning", "error")


def configure_logs(format: str = "auto", level: str = "info") -> None:  # noqa: A002
    """Send all logs of the process, those of libraries too, to stderr: a line each.

    ``format`` is json, console (for people), or auto: console if stderr is a terminal. ``level`` is
    the least that is told: debug, info, warning, error. Raises `ConfigError` for anything else.
    """
    if format not in FORMATS:
        raise ConfigError(
            f"log_format is {shown(format)}; it must be one of {', '.join(FORMATS)}",
            param="log_format",
        )
    if level not in LEVELS:
        raise ConfigError(
            f"log_level is {shown(level)}; it must be one of {', '.join(LEVELS)}", param="log_level"
        )
    structlog = _structlog()
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if format == "console" or (format == "auto" and sys.stderr.isatty()):
        # repr: a line break in an id that a client chose makes no second line.
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), repr_native_str=True)
        last = [renderer]
    else:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())


def log_request(stats: RequestStats) -> None:
    """Log one line about a request that has ended; a warning if it failed."""
    log = _structlog().get_logger("octavo.requests")
    facts = {"request_id": stats.request_id, "finish_reasons": stats.finish_reasons}
    if stats.error is None:
        log.info("request", **facts, **timings(stats))
    else:
        log.warning("request", **facts, error=stats.error, **timings(stats))


def timings(stats: RequestStats) -> dict[str, Any]:
    """Return what a request cost, ready for JSON. Seconds; None for what never came.

    ``queue_reason`` is why it was not scheduled at once: ``seats``, ``room`` or ``prefix``, None if
    it was. ``tokens_per_second`` is of the tokens after the first of each choice.
    """
    decode, num_later = stats.decode_seconds, stats.num_output_tokens - stats.params.n
    return {
        "prompt_tokens": stats.num_prompt_tokens,
        "cached_tokens": stats.num_cached_tokens,
        "computed_tokens": 0 if stats.scheduled is None else stats.num_computed_tokens,
        "recomputed_tokens": stats.num_recomputed_tokens,
        "output_tokens": stats.num_output_tokens,
        "preemptions": stats.num_preemptions,
        "queue_seconds": _rounded(stats.queue_seconds),
        "queue_reason": stats.waited_for or None,
        "prefill_seconds": _rounded(stats.prefill_seconds),
        "decode_seconds": _rounded(decode),
        "ttft_seconds": _rounded(stats.first_token_seconds),
        "total_seconds": _rounded(stats.seconds),
        "tokens_per_second": round(num_later / decode, 2) if decode and num_later > 0 else None,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _structlog() -> Any:
    try:
        import structlog
    except ImportError:
        raise ConfigError(
            "the server's logs need structlog, which is not installed; pip install 'octavo[serve]'",
            param="log_format",
        ) from None
    return structlog
