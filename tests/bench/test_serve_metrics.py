"""Figures of recorded timings, by hand; and what must hold whatever the timings are."""

import csv
import json
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.serve.client import Answer
from octavo.bench.serve.metrics import (
    max_concurrent,
    max_tokens_per_second,
    result_fields,
    statistics,
)
from octavo.bench.serve.report import lines, result_path, save, to_json, write_csv
from octavo.bench.serve.run import LoadTest, Run
from octavo.bench.serve.settings import DatasetSettings, Reporting, Sampling, Target, Traffic

BEGIN = 100.0


def answer(start, times, *, arrival=None, output_len=None, end=None, prompt_len=10, **more):
    """An answer whose chunks came at ``times``, in seconds from the run's start."""
    end = times[-1] if end is None else end
    return Answer(
        arrival=BEGIN + (start if arrival is None else arrival),
        start=BEGIN + start,
        prompt_len=prompt_len,
        output_len=len(times) if output_len is None else output_len,
        first=BEGIN + times[0],
        end=BEGIN + end,
        token_times=tuple(BEGIN + time for time in times),
        **more,
    )


def failed(start, error="HTTP 500: no"):
    return Answer(arrival=BEGIN + start, start=BEGIN + start, prompt_len=10, error=error)


def three_and_a_failure():
    """TTFT 0.25, 0.5, 0.5; ITL 0.25 x2, 0.5; TPOT 0.25, 0.5; E2EL 0.75, 1.0, 0.5."""
    return Run(
        max_concurrency=4,
        begin=BEGIN,
        duration=2.0,
        answers=[
            answer(0.0, [0.25, 0.5, 0.75], cached_tokens=4),
            answer(0.5, [1.0, 1.5], arrival=0.25, cached_tokens=0, prompt_len=20),
            answer(1.0, [1.5], text="x"),
            failed(1.0),
        ],
    )


def test_every_field_of_recorded_timings():
    reporting = Reporting(
        percentile_metrics="ttft,tpot,itl,e2el,client_queue_time,e2el_including_client_queue",
        metric_percentiles="0,50,99.9",
        goodput=["ttft:500", "tpot:300"],
    )
    fields = result_fields(three_and_a_failure(), reporting)
    totals = {
        "duration": 2.0, "completed": 3, "failed": 1,
        "total_input_tokens": 40, "total_output_tokens": 6,
        "request_throughput": 1.5, "request_goodput": 1.0,
        "output_throughput": 3.0, "total_token_throughput": 23.0,
        "max_output_tokens_per_s": 3.0, "max_concurrent_requests": 2,
        "total_cached_tokens": 4, "cached_ratio": 4 / 30,
    }  # fmt: skip
    assert {name: fields[name] for name in totals} == pytest.approx(totals)
    assert list(fields)[: len(totals)] == list(totals)
    by_hand = {
        "ttft": [1250 / 3, 500, 250, 500],
        "tpot": [375, 375, 250, 375],
        "itl": [1000 / 3, 250, 250, 250],
        "e2el": [750, 750, 500, 750],
        "client_queue_time": [250 / 3, 0, 0, 0],
        "e2el_including_client_queue": [2500 / 3, 750, 500, 750],
    }
    for metric, values in by_hand.items():
        names = ("mean", "median", "p0", "p50")
        assert [fields[f"{name}_{metric}_ms"] for name in names] == pytest.approx(values)
    assert fields["std_tpot_ms"] == pytest.approx(125)
    assert fields["p99.9_tpot_ms"] == pytest.approx(499.75)
    assert "ttfts" not in fields
    assert "unfinished" not in fields


def test_detailed_lists_have_an_item_a_request_and_failed_ones_keep_their_message():
    fields = result_fields(three_and_a_failure(), Reporting(save_detailed=True))
    assert {name: value for name, value in fields.items() if isinstance(value, list)} == {
        "input_lens": [10, 20, 10, 10],
        "output_lens": [3, 2, 1, 0],
        "cached_tokens": [4, 0, None, None],
        "ttfts": [0.25, 0.5, 0.5, 0.0],
        "itls": [[0.25, 0.25], [0.5], [], []],
        "latencies": [0.75, 1.0, 0.5, 0.0],
        "start_times": [0.0, 0.5, 1.0, 1.0],
        "queue_times": [0.0, 0.25, 0.0, 0.0],
        "generated_texts": ["", "", "x", ""],
        "errors": ["", "", "", "HTTP 500: no"],
    }


def test_what_was_not_measured_is_none():
    run = Run(None, begin=BEGIN, duration=1.0, answers=[failed(0.0)])
    fields = result_fields(run, Reporting())
    assert (fields["completed"], fields["failed"]) == (0, 1)
    assert fields["output_throughput"] == fields["max_output_tokens_per_s"] == 0
    for name in ("request_goodput", "total_cached_tokens", "cached_ratio", "mean_ttft_ms"):
        assert fields[name] is None


def test_a_chunk_of_several_tokens_counts_for_them():
    # 8 tokens in 2 chunks: 4 in each of two seconds. TPOT divides by the tokens.
    only = answer(0.0, [0.5, 1.5], output_len=8)
    assert max_tokens_per_second([only]) == 4.0
    assert only.tpot == 1.0 / 7


@pytest.mark.parametrize(
    ("goals", "num_good"),
    [
        (["e2el:749"], 1),
        (["e2el:1000"], 3),  # what takes just as long is good
        (["ttft:1"], 0),
        (["ttft:500", "tpot:1"], 1),  # one token alone has a TPOT of 0
    ],
)
def test_a_good_request_meets_every_goal(goals, num_good):
    fields = result_fields(three_and_a_failure(), Reporting(goodput=goals))
    assert fields["request_goodput"] == num_good / 2.0


@st.composite
def timed_answers(draw):
    moment = st.integers(0, 40).map(lambda quarter: quarter / 4)
    found = []
    for _ in range(draw(st.integers(1, 8))):
        start, *times = sorted(draw(st.lists(moment, min_size=2, max_size=8)))
        found.append(answer(start, times))
    return found


@given(timed_answers())
def test_concurrency_is_what_counting_at_each_start_gives(answers):
    starts = [each.start for each in answers if each.end > each.start]
    counted = [sum(a.start <= moment < a.end for a in answers) for moment in starts]
    assert max_concurrent(answers) == max(counted, default=0)


@given(timed_answers())
def test_the_best_second_is_between_the_mean_and_all(answers):
    total = sum(each.output_len for each in answers)
    span = int(max(a.end for a in answers) - min(a.start for a in answers)) + 1
    assert total / span - 1e-9 <= max_tokens_per_second(answers) <= total


@given(st.lists(st.floats(0, 1e4), min_size=1), st.floats(0, 100))
def test_statistics_stay_within_the_values(seconds, q):
    found = statistics("ttft", seconds, [q])
    for name in ("mean_ttft_ms", "median_ttft_ms", f"p{q:.10g}_ttft_ms"):
        assert 1e3 * min(seconds) * (1 - 1e-9) <= found[name] <= 1e3 * max(seconds) * (1 + 1e-9)
    assert 0 <= found["std_ttft_ms"] <= 1e3 * max(seconds)


def result(reporting, max_concurrency=4, **traffic):
    run = three_and_a_failure()
    run.max_concurrency = max_concurrency
    test = LoadTest(Target(model="org/m"), DatasetSettings(), Traffic(**traffic), Sampling())
    return to_json(run, "org/m", test, reporting, datetime(2026, 1, 2, 3, 4, 5))


def test_json_begins_with_the_settings_and_has_the_metadata():
    found = result(Reporting(metadata=["tp=1", "a=b=c"], label="x"), request_rate=2.0)
    assert {name: found[name] for name in list(found)[:14]} == {
        "date": "20260102-030405", "endpoint_type": "openai", "backend": "openai", "label": "x",
        "model_id": "org/m", "tokenizer_id": None, "num_prompts": 4, "tp": "1", "a": "b=c",
        "request_rate": 2.0, "burstiness": 1.0, "max_concurrency": 4, "dataset_name": "random",
        "seed": 0,
    }  # fmt: skip
    ramp = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 2.0}
    found = result(Reporting(), **ramp)
    assert ramp.items() <= found.items()
    assert found["request_rate"] == "inf"


def test_files_have_vllms_names_and_lines(tmp_path):
    plain = Reporting(save_result=True, result_dir=str(tmp_path / "new"))
    [path] = save([result(plain)], plain)
    assert path == tmp_path / "new" / "openai-infqps-concurrency4-m-20260102-030405.json"
    assert json.loads(path.read_text())["completed"] == 3
    ramp = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 2.0}
    name = result_path(result(plain, None, **ramp), plain).name
    assert name == "openai-ramp-up-linear-1.0qps-2.0qps-m-20260102-030405.json"
    named = Reporting(append_result=True, result_dir=str(tmp_path), result_filename="a.json")
    for _ in range(2):
        assert save([result(named), result(named, 8)], named) == [tmp_path / "a.json"]
    rows = [json.loads(line) for line in (tmp_path / "a.json").read_text().splitlines()]
    assert [row["max_concurrency"] for row in rows] == [4, 8, 4, 8]
    assert save([result(Reporting())], Reporting()) == []


def test_csv_has_a_row_a_run_of_single_values(tmp_path):
    reporting = Reporting(save_detailed=True)
    write_csv([result(reporting), result(reporting, 8)], tmp_path / "a.csv")
    with (tmp_path / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["max_concurrency"] for row in rows] == ["4", "8"]
    assert rows[0]["total_output_tokens"] == "6"
    assert "itls" not in rows[0]


def test_what_people_read():
    told = "\n".join(lines(result(Reporting(goodput=["ttft:500"])), {"ttft": 500.0}))
    assert "3 completed, 1 failed in 2.00 s: 1.50 a second" in told
    assert "good requests: 1.50 a second (ttft 500 ms)" in told
    assert "40 in, 6 out: 3.0 tok/s out, 3 in the best second" in told
    assert "cached: 4 tokens (13.3 % of the prompts)" in told
