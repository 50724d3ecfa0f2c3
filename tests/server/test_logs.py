"""Logs: a line a request with its why, and nothing that was said."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from octavo.errors import ConfigError
from octavo.sampling.params import SamplingParams
from octavo.server.logs import configure_logs, log_request, timings
from server.front import Front, ended, prompt

pytestmark = pytest.mark.usefixtures("loggers_as_before")

FACTS = {
    "prompt_tokens": 50, "cached_tokens": 32, "computed_tokens": 18, "recomputed_tokens": 9,
    "output_tokens": 17, "preemptions": 1, "queue_seconds": 0.5, "queue_reason": "prefix",
    "prefill_seconds": 0.5, "decode_seconds": 2.0, "ttft_seconds": 1.25, "total_seconds": 3.5,
    "tokens_per_second": 8.0,
}  # fmt: skip


def test_timings_say_what_a_request_cost_and_why() -> None:
    assert timings(ended()) == FACTS
    assert json.loads(json.dumps(timings(ended()))) == FACTS
    several = ended(params=SamplingParams(n=3), num_output_tokens=23)
    assert timings(several)["tokens_per_second"] == 10.0  # 20 tokens came after the first ones


def test_timings_of_what_never_ran_have_no_times() -> None:
    aborted = ended(
        scheduled=None, first_token=None, last_token=None, num_cached_tokens=0,
        num_output_tokens=0, waited_for="",
    )  # fmt: skip
    told = timings(aborted)
    assert (told["computed_tokens"], told["total_seconds"]) == (0, 3.5)
    none = ("queue_seconds", "queue_reason", "prefill_seconds", "decode_seconds", "ttft_seconds")
    assert [told[name] for name in (*none, "tokens_per_second")] == [None] * 6


def test_a_request_is_one_line_of_json_with_every_fact(capsys) -> None:
    configure_logs("json")
    log_request(ended())
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert told.pop("timestamp").endswith("Z")
    assert told == {
        "event": "request", "level": "info", "request_id": "cmpl-1", "finish_reasons": ["stop"],
        **FACTS,
    }  # fmt: skip


def test_a_failed_request_is_a_warning_with_its_error(capsys) -> None:
    configure_logs("json", "warning")
    log_request(ended())
    log_request(ended(error="the logits contain NaN", finish_reasons=["error"]))
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert (told["level"], told["error"]) == ("warning", "the logits contain NaN")


@pytest.mark.parametrize("name", ["a\nlevel=error", "a\x1b[31m", "a\u2028b", "a\x85b"])
@pytest.mark.parametrize("form", ["json", "console"])
def test_an_id_can_neither_break_a_line_nor_steer_a_terminal(form: str, name: str, capsys) -> None:
    configure_logs(form)
    log_request(ended(request_id=name))
    text = capsys.readouterr().err
    assert len(text.splitlines()) == 1
    assert text.removesuffix("\n").isprintable()


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_word_of_prompt_answer_or_parameters_is_logged(form: str, capsys) -> None:
    configure_logs(form, "debug")
    front = Front()
    tokens = prompt(1, 30)
    front.add("r", tokens, max_tokens=4, stop=["SECRET-stop"], bad_words=["SECRET-word"])
    stats = front.open["r"][0]
    answer = front.open["r"][1][0].output_token_ids
    front.run()
    log_request(stats)
    text = capsys.readouterr().err
    assert "request" in text
    assert "SECRET" not in text
    for ids in (tokens, answer):
        assert str(ids)[1:10] not in text  # nor as ids


def test_auto_is_json_where_nobody_looks_and_console_on_a_terminal(capsys, monkeypatch) -> None:
    configure_logs()
    log_request(ended())
    json.loads(capsys.readouterr().err)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    configure_logs()
    log_request(ended())
    text = capsys.readouterr().err
    assert not text.startswith("{")
    assert "cached_tokens" in text


def test_other_libraries_logs_become_lines_of_the_same_kind(capsys) -> None:
    configure_logs("json")
    logging.getLogger("another.library").info("started on %s", "port 80")
    logging.getLogger("another.library").debug("not told")
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert (told["event"], told["level"]) == ("started on port 80", "info")


def test_an_exception_is_told_with_its_traceback_in_one_line(capsys) -> None:
    configure_logs("json")
    try:
        raise ValueError("oh")
    except ValueError:
        logging.getLogger("octavo.engine").exception("a step failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError: oh" in json.loads(line)["exception"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("xml", "info"), "log_format is 'xml'; it must be one of auto, json, console"),
        (("json", "loud"), "log_level is 'loud'; it must be one of debug, info, warning, error"),
    ],
)
def test_an_unknown_format_or_level_is_refused(settings, message) -> None:
    with pytest.raises(ConfigError) as caught:
        configure_logs(*settings)
    assert str(caught.value) == message


def test_without_structlog_the_remedy_is_told(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "structlog", None)
    with pytest.raises(ConfigError, match=r"pip install 'octavo\[serve\]'"):
        configure_logs()
