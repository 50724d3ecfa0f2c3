"""`octavo bench serve` as a command: its flags, what it prints and writes, and how it ends."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from fake_openai import Script, Serving
from octavo.cli.app import app

VLLMS_FLAGS = """
--backend --base-url --host --port --endpoint --model --served-model-name --tokenizer
--dataset-name --dataset-path --num-prompts --input-len --output-len --random-input-len
--random-output-len --random-prefix-len --random-range-ratio
--prefix-repetition-prefix-len --prefix-repetition-suffix-len
--prefix-repetition-num-prefixes --prefix-repetition-output-len --request-rate
--burstiness --max-concurrency --ramp-up-strategy --ramp-up-start-rps --ramp-up-end-rps
--self-timed --num-warmups --ready-check-timeout-sec --ignore-eos --temperature --top-p
--top-k --min-p --frequency-penalty --presence-penalty --repetition-penalty --logprobs
--extra-body --header --goodput --percentile-metrics --metric-percentiles --save-result
--save-detailed --append-result --result-dir --result-filename --metadata --label --seed
--request-id-prefix
"""
SMALL = ("--num-prompts", "4", "--random-input-len", "5", "--random-output-len", "3")


@pytest.fixture
def octavo(capsys, monkeypatch):
    """Run the command in this process; returns code, stdout and stderr."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def call(*args):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app(args=["bench", "serve", *map(str, args)], prog_name="octavo")
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call


def test_help_names_vllms_flags(octavo):
    code, out, _ = octavo("--help")
    assert code == 0
    for flag in VLLMS_FLAGS.split():
        assert f"{flag} " in out or f"{flag}\n" in out, flag


def test_json_csv_and_files(octavo, tmp_path):
    with Serving(Script()) as server:
        code, out, err = octavo(
            "--base-url", server.url, *SMALL, "--json", "--csv", tmp_path / "a.csv",
            "--max-concurrency", "1,3", "--save-result", "--result-dir", tmp_path,
            "--result-filename", "r.json", "--goodput", "ttft:60000", "e2el:60000",
            "--metadata", "a=1", "b=2",
        )  # fmt: skip
    assert code == 0
    printed = [json.loads(line) for line in out.splitlines()]
    saved = [json.loads(line) for line in (tmp_path / "r.json").read_text().splitlines()]
    assert printed == saved
    assert [each["max_concurrency"] for each in printed] == [1, 3]
    for each in printed:
        assert (each["completed"], each["failed"], each["total_output_tokens"]) == (4, 0, 12)
        assert (each["a"], each["b"]) == ("1", "2")
        assert each["request_goodput"] == each["request_throughput"]
    with (tmp_path / "a.csv").open() as file:
        assert [row["completed"] for row in csv.DictReader(file)] == ["4", "4"]
    assert "written: " in err


def test_what_people_read(octavo):
    with Serving(Script(fail_every=4)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        code, out, err = octavo(
            "--host", host, "--port", port, *SMALL, "--percentile-metrics", "ttft,itl",
            "--metric-percentiles", "99.5", "--header", "A=1", "B=2",
        )  # fmt: skip
        assert server.headers[0]["a"] == "1"
        assert server.headers[0]["b"] == "2"
    assert code == 0
    assert "requests: 3 completed, 1 failed in" in out
    *_, header, ttft, itl = (line.split() for line in out.splitlines())
    assert header == ["ms", "mean", "median", "std", "p99.5"]
    assert (ttft[0], itl[0]) == ("ttft", "itl")
    assert "1 failed: HTTP 500: no, by the script" in err


def test_the_key_of_the_environment_is_sent(octavo, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "from the environment")
    with Serving(Script()) as server:
        assert octavo("--base-url", server.url, *SMALL)[0] == 0
        assert server.headers[0]["authorization"] == "Bearer from the environment"
    assert "from the environment" not in octavo("--help")[1]


def test_the_picture(octavo, tmp_path):
    pytest.importorskip("matplotlib", reason="plots: pip install matplotlib")
    with Serving(Script()) as server:
        for name, more in (("a.png", ()), ("b.png", ("--max-concurrency", "1,4"))):
            assert (
                octavo("--base-url", server.url, *SMALL, *more, "--plot", tmp_path / name)[0] == 0
            )
            assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        server.script.status = 500
        failed = tmp_path / "c.png"
        assert octavo("--base-url", server.url, *SMALL, "--plot", failed)[0] == 1
        assert failed.read_bytes().startswith(b"\x89PNG")


def test_when_every_request_fails_so_does_the_command(octavo):
    with Serving(Script(status=400)) as server:
        code, out, err = octavo("--base-url", server.url, *SMALL, "--json")
    assert code == 1
    assert json.loads(out)["failed"] == 4
    assert "4 failed: HTTP 400: no, by the script" in err


def test_a_server_that_is_not_there_is_an_error_of_one_line(octavo):
    with Serving(Script()) as server:
        pass
    code, out, err = octavo("--base-url", server.url, *SMALL)
    assert (code, out) == (1, "")
    assert "does not answer" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("--backend", "tgi"), "backend is 'tgi'; known are openai, openai-chat"),
        (("--base-url", "localhost:8000"), "begin it with http://"),
        (("--port", "0"), "--port"),
        (("--dataset-name", "sonnet"), "dataset_name is 'sonnet'; known are random"),
        (("--dataset-name", "custom"), "name its file"),
        (("--dataset-path", "x"), "leave it out"),
        (("--dataset-name", "custom", "--dataset-path", "/none/x"), "cannot be read"),
        (("--num-prompts", "0"), "--num-prompts"),
        (("--random-range-ratio", "1"), "it must be below 1"),
        (("--self-timed",), "timed_trace only"),
        (("--time-scale", "inf"), "finite"),
        (("--request-rate", "0"), "request_rate is 0.0; it must be above 0"),
        (("--burstiness", "nan"), "burstiness is nan; it must be above 0"),
        (("--max-concurrency", "1,0"), "whole numbers from 1"),
        (("--ramp-up-start-rps", "1"), "a ramp needs --ramp-up-strategy"),
        (("--ramp-up-strategy", "cubic"), "known are linear, exponential"),
        (("--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1"), "two finite rates"),
        (("--extra-body", "[1]"), "not a JSON object"),
        (("--extra-body", "{"), "extra_body is not JSON"),
        (("--header", "nothing"), "header is 'nothing'; it must be KEY=VALUE"),
        (("--metadata", "=x"), "it must be KEY=VALUE"),
        (("--goodput", "itl:1"), "known are ttft, tpot, e2el"),
        (("--goodput", "ttft:x"), "it must be such as ttft:200"),
        (("--percentile-metrics", "ttft,speed"), "percentile_metrics is 'speed'"),
        (("--metric-percentiles", "50,101"), "numbers from 0 to 100"),
        (("--plot", "a.jpg"), "end it in .png"),
        (("--csv", "/none/a.csv"), "cannot be written"),
        (("--backend", "openai-chat"), "--tokenizer smollm2"),
    ],
)
def test_bad_usage_is_refused_before_anything_is_sent(octavo, args, reason):
    code, out, err = octavo(*args)
    assert reason in err
    assert code == (1 if "cannot be read" in reason else 2)
    assert not out


@pytest.mark.parametrize(
    ("args", "remedy"),
    [
        (("--profile",), "octavo bench latency"),
        (("--probe-request-rate", "0.5"), "a second octavo bench serve"),
        (("--plot-timeline",), "--save-detailed"),
        (("--timeline-itl-thresholds", "2,5"), "no timeline"),
        (("--plot-dataset-stats",), "--save-detailed"),
    ],
)
def test_what_only_vllm_has_is_refused_with_what_there_is_instead(octavo, args, remedy):
    with Serving(Script()) as server:
        code, out, err = octavo("--base-url", server.url, *args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert args[0] in err
    assert remedy in err
    assert args[0] not in octavo("--help")[1]


def test_ctrl_c_ends_with_what_was_measured():
    code = "import sys; from octavo.cli.main import main; sys.argv[0] = 'octavo'; main()"
    with Serving(Script(delay=0.01)) as server:
        args = ("--base-url", server.url, "--num-prompts", "5000", "--random-input-len", "5",
                "--random-output-len", "3", "--max-concurrency", "2", "--json")  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-c", code, "bench", "serve", *args],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ},
        )  # fmt: skip
        try:
            end = time.monotonic() + 60
            while len(server.bodies) < 6 and time.monotonic() < end:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
    assert (process.returncode, err) == (130, "")
    found = json.loads(out)
    assert found["completed"] >= 4
    assert found["failed"] == 0
    assert found["completed"] + found["unfinished"] == 5000
