"""`octavo simulate`: its table, JSON, CSV and picture, and what it refuses."""

from __future__ import annotations

import csv
import json
import sys

import pytest
import typer
from typer.testing import CliRunner

from octavo.cli.guard import guarded
from octavo.cli.simulate import simulate

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(guarded(simulate))


@pytest.fixture
def trace(tmp_path):
    lines = [
        json.dumps(
            {"timestamp": 0, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
        )
        for ids in ([0, 1, 2], [0, 1, 3], [0, 1, 2])
    ]
    path = tmp_path / "small.jsonl"
    path.write_text("\n".join(lines))
    return path


def run(*args, exit_code=0):
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == exit_code, result.output
    return result


def test_the_table_says_what_was_found_and_what_the_words_mean(trace):
    output = run(trace, "--policy", "lru,arc", "--capacity", "3,10").stdout
    assert "small: 9 references" in output
    assert "prefix-contiguous" in output
    lines = [line.split() for line in output.splitlines()]
    assert ["10", "lru", "55.56", "55.56", "5", "0"] in lines
    assert ["infinite", "55.56", "55.56", "5"] in lines


def test_json(trace):
    found = json.loads(run(trace, "--policy", "lru", "--capacity", "10", "--json").stdout)
    assert [each["policy"] for each in found] == ["lru", "min", "infinite"]
    assert found[0]["references"] == 9
    assert found[0]["hits"] == 5
    assert found[0]["hit_rate"] == pytest.approx(5 / 9, abs=1e-6)


def test_csv(trace, tmp_path):
    run(trace, "--capacity", "10", "--csv", tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [each["policy"] for each in found] == ["lru", "arc", "min", "infinite"]
    assert found[3]["capacity"] == ""


def test_plot(trace, tmp_path):
    pytest.importorskip("matplotlib", reason="plots: pip install matplotlib")
    run(trace, "--capacity", "3,10", "--plot", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    result = run(trace, "--plot", tmp_path / "a.nothing", exit_code=2)
    assert "end it in .png" in result.stderr


@pytest.mark.parametrize("flag", ["--csv", "--plot"])
def test_where_nothing_can_be_written_is_told_before_the_replay(trace, tmp_path, flag):
    result = run(trace, flag, tmp_path / "no folder" / "a.png", exit_code=2)
    assert "cannot be written" in result.stderr
    assert not result.stdout


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("class X:\n  pass", "not a class derived"),
        ("x = ", "cannot be imported"),
        ("import sys; sys.exit()", "cannot be imported: SystemExit()"),
        ("from octavo.cache.eviction import EvictionPolicy\nclass X(EvictionPolicy): name='x'",
         "it lacks num_evictable, on_evictable, on_hit, on_insert, victim"),
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_used_is_refused_by_name(
    trace, tmp_path, monkeypatch, source, reason
):
    (tmp_path / "mine_for_test.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_for_test", raising=False)
    result = run(trace, "--policy", "mine_for_test:X", exit_code=2)
    assert "mine_for_test:X" in result.stderr
    assert reason in result.stderr


TWO_OF_ONE_NAME = """
from octavo.cache.policies.lru import LRU
class A(LRU):
    name = "twin"
class B(LRU):
    name = "twin"
"""


def test_policies_of_one_name_are_refused_and_one_policy_counts_once(trace, tmp_path, monkeypatch):
    (tmp_path / "twins_for_test.py").write_text(TWO_OF_ONE_NAME)
    monkeypatch.syspath_prepend(tmp_path)
    names = "twins_for_test:A,twins_for_test:B"
    assert "two that are called 'twin'" in run(trace, "--policy", names, exit_code=2).stderr
    twice = ("--policy", "lru,octavo.cache.policies.lru:LRU", "--capacity", "3", "--no-bounds")
    assert len(json.loads(run(trace, *twice, "--json").stdout)) == 1


def test_nothing_is_replayed_where_a_later_step_cannot_be_done(trace, tmp_path, monkeypatch):
    def replay(*_):
        raise AssertionError

    monkeypatch.setattr("octavo.simulate.experiment.Experiment.run", replay)
    bad = tmp_path / "a.lis"
    bad.write_text("x\n")
    assert "not all of 'x'" in run(trace, bad, exit_code=1).stderr
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,9,3\n")
    assert "has lengths only" in run(trace, lengths, exit_code=1).stderr
    monkeypatch.setattr("octavo.simulate.plot.find_spec", lambda _: None)
    result = run(trace, "--plot", tmp_path / "a.png", exit_code=2)
    assert "pip install 'octavo[plots]'" in result.stderr


def test_too_little_memory_is_one_line(trace, monkeypatch):
    def replay(*_):
        raise MemoryError

    monkeypatch.setattr("octavo.simulate.experiment.Experiment.run", replay)
    assert (
        "not enough memory for capacity 3 on small"
        in run(trace, "--capacity", "2,3", exit_code=2).stderr
    )


def test_results_carry_their_settings(trace):
    record = json.loads(run(trace, "--capacity", "3", "--json", "--seed", "4").stdout)[0]
    assert (record["seed"], record["users"], record["concurrency"]) == (4, 32, 1)


def test_several_traces_and_keys(trace, tmp_path):
    keys = tmp_path / "keys.trace"
    keys.write_text("1\n2\n1\n")
    output = run(trace, keys, "--policy", "lru", "--capacity", "3").stdout
    assert "keys: 3 references" in output
    assert "Single keys" in output


def test_limit_and_concurrency_and_rules(trace):
    args = (trace, "--policy", "lru", "--capacity", "10", "--json", "--no-bounds")
    assert json.loads(run(*args, "--limit", "1").stdout)[0]["references"] == 3
    assert json.loads(run(*args, "--concurrency", "2").stdout)[0]["hits"] == 5
    assert json.loads(run(*args, "--policy", "min,lru").stdout)[1]["policy"] == "min"
    assert json.loads(run(*args, "--rules", "reverse").stdout)[0]["rules"] == "reverse"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--policy", "mru"), "eviction_policy is 'mru'; known are arc"),
        (("--policy", ","), "policy is ','; name at least one"),
        (("--capacity", "0"), "capacity is '0'; it must be a whole number"),
        (("--capacity", "1e4"), "capacity is '1e4'; it must be a whole number"),
        (("--capacity", "99999999999999"), "capacity is 99999999999999; the accounts of a block"),
        (("--capacity", "9" * 5000), "of memory are free: it may be"),
        (("--rules", "tree"), "rules is 'tree'; known are engine"),
        (("--rules", "forward", "--concurrency", "2"), "only --rules engine holds blocks"),
    ],
)
def test_bad_settings_are_refused(trace, args, message):
    assert message in run(trace, *args, exit_code=2).stderr


def test_a_bad_trace_is_one_line(tmp_path):
    path = tmp_path / "a.lis"
    path.write_text("1 1 0 0\nx\n")
    result = run(path, exit_code=1)
    assert result.stderr == f"error: {path}, line 2: not all of 'x' are whole numbers\n"


def test_text_goes_through_a_models_tokenizer(tmp_path, tiny_model_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"timestamp": 0, "input": "aaaaaaaaaaaaaaaaaaaaaaaaa", "output": ""}\n' * 2)
    found = json.loads(
        run(path, "--tokenizer", tiny_model_path, "--block-size", "2", "--policy", "lru",
            "--json").stdout
    )  # fmt: skip
    assert found[0]["requests"] == 2
    assert found[0]["hits"] == found[0]["references"] / 2 > 0
