"""`octavo bench`: vLLM's flags and fields, what is printed, and what is refused beforehand."""

import json

import pytest

from octavo.bench.peaks import Peaks

PART = [
    "num_steps", "num_tokens", "seconds", "tokens_per_second", "engine_overhead", "shares",
    "forward_shares", "reached",
]  # fmt: skip
RATES = ["gb_per_second", "gops", "gflops", "memory_percent", "dot_percent", "fma_percent"]
SHORT = ("--input-len", "6", "--output-len", "3")
LATENCY = ("latency", *SHORT, "--batch-size", "2", "--num-iters-warmup", "0", "--num-iters", "2")
THROUGHPUT = ("throughput", *SHORT, "--num-prompts", "4")
KERNELS = ("kernels", "--rows", "1,5", "--contexts", "20", "--repeats", "1")


@pytest.fixture(autouse=True)
def _quick_peaks(monkeypatch):
    """The machine's limits take seconds; here they are made up."""
    monkeypatch.setattr("octavo.bench.peaks.measure_peaks", lambda n: Peaks(n, 40.0, 800.0, 200.0))


def run(octavo, *args, code=0):
    result = octavo("bench", *args)
    assert result.code == code, result.err
    return result


def test_latency_in_json(octavo, tiny, tmp_path):
    path = tmp_path / "a.json"
    found = json.loads(run(octavo, *LATENCY, *tiny, "--json", "--output-json", path).out)
    assert found == json.loads(path.read_text())
    assert list(found) == [
        "avg_latency", "latencies", "percentiles", "prefill", "decode", "peaks",
    ]  # fmt: skip
    assert len(found["latencies"]) == 2
    assert list(found["percentiles"]) == ["10", "25", "50", "75", "90", "99"]
    for part, num_tokens in (("prefill", 24), ("decode", 8)):
        assert list(found[part]) == PART
        assert found[part]["num_tokens"] == num_tokens
        assert list(found[part]["reached"]) == RATES
    assert found["peaks"] == {
        "num_threads": 1, "read_gb": 40.0, "dot_gops": 800.0, "fma_gflops": 200.0,
    }  # fmt: skip


def test_throughput_in_json(octavo, tiny):
    found = json.loads(run(octavo, *THROUGHPUT, *tiny, "--n", "2", "--json", "--no-peaks").out)
    assert list(found) == [
        "elapsed_time", "num_requests", "total_num_tokens", "requests_per_second",
        "tokens_per_second", "prefill", "decode", "peaks",
    ]  # fmt: skip
    assert (found["num_requests"], found["total_num_tokens"]) == (4, 4 * (6 + 2 * 3))
    assert found["peaks"] is None
    assert found["decode"]["reached"]["memory_percent"] is None


def test_kernels_in_json(octavo, tiny):
    found = json.loads(run(octavo, *KERNELS, *tiny, "--json").out)
    assert [(each["kernel"], each["num_rows"]) for each in found["kernels"]] == [
        *((name, count) for count in (1, 5) for name in ("qkv", "output", "feed", "down", "head")),
        ("attention", 1),
        ("attention", 20),
    ]
    for each in found["kernels"]:
        assert list(each) == [
            "kernel", "size", "num_rows", "seconds", "num_bytes", "int_ops", "float_ops", *RATES,
        ]  # fmt: skip
        assert each["memory_percent"] == pytest.approx(100 * each["gb_per_second"] / 40)


def test_what_people_read(octavo, tiny):
    out = run(octavo, *LATENCY, *tiny).out
    for words in (
        "s on average",
        "prefill: ",
        "decode: ",
        "schedule ",
        "waiting ",
        "outside compi",
    ):
        assert words in out
    assert "limits of 1 threads: 40.0 GB/s read, 800 GOPS byte dot" in out
    assert "4 requests in" in run(octavo, *THROUGHPUT, *tiny, "--disable-detokenize").out
    header, *rows = run(octavo, *KERNELS, *tiny, "--no-peaks").out.splitlines()
    assert header.split()[:4] == ["kernel", "size", "M", "ms"]
    assert len(rows) == 12


def test_kernels_leaves_out_contexts_that_the_model_has_not(octavo, tiny):
    args = ("kernels", "--rows", "1", "--repeats", "1", "--max-model-len", "200", "--no-peaks")
    found = json.loads(run(octavo, *args, *tiny, "--json").out)
    sizes = {each["size"] for each in found["kernels"] if each["kernel"] == "attention"}
    assert sizes == {"context 128"}


def test_the_reference_backend_is_measured_without_limits(octavo, tiny, tmp_path):
    plot = tmp_path / "a.png"
    result = run(octavo, *LATENCY, *tiny, "--backend", "reference", "--json", "--plot", plot)
    found = json.loads(result.out)
    assert (
        found["peaks"] is found["decode"]["reached"] is found["decode"]["engine_overhead"] is None
    )
    assert "no limits are measured" in result.err
    assert "a.png is not drawn" in result.err


@pytest.mark.parametrize("command", [LATENCY, THROUGHPUT, KERNELS], ids=lambda args: args[0])
def test_the_roofline(octavo, tiny, tmp_path, command):
    pytest.importorskip("matplotlib", reason="plots: pip install matplotlib")
    run(octavo, *command, *tiny, "--plot", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ((*LATENCY, "--input-len", "9999"), "make 10002 tokens, and a request may have at most"),
        ((*LATENCY, "--batch-size", "0"), "--batch-size"),
        ((*THROUGHPUT, "--plot", "a.jpg"), "end it in .png"),
        ((*THROUGHPUT, "--plot", "a.png", "--no-peaks"), "leave out --no-peaks"),
        ((*KERNELS, "--rows", "1,0"), "rows is '1,0'; it must be whole numbers from 1"),
        ((*KERNELS, "--rows", "9999"), "a context of 9999 tokens is more than the"),
        ((*KERNELS, "--contexts", ""), "contexts is ''; it must be whole numbers"),
        ((*KERNELS, "--backend", "reference"), "only the cpu backend has kernels"),
    ],
)
def test_bad_usage_is_refused(octavo, tiny, args, reason):
    result = run(octavo, *args, *tiny, code=2)
    assert reason in result.err
    assert not result.out


@pytest.mark.parametrize("flag", ["--output-json", "--plot"])
@pytest.mark.parametrize("command", [LATENCY, THROUGHPUT, KERNELS], ids=lambda args: args[0])
def test_where_nothing_can_be_written_is_told_first(octavo, tmp_path, flag, command):
    result = run(octavo, *command, flag, tmp_path / "none" / "a.png", "--model", "none", code=2)
    assert "cannot be written" in result.err
