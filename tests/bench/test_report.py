"""Rates, shares of the limits and vLLM's fields, of numbers made up so that they are exact."""

from __future__ import annotations

import pytest

from octavo.bench.counts import Work
from octavo.bench.peaks import Peaks
from octavo.bench.report import Point, Reached, latency_fields, throughput_fields
from octavo.bench.roofline import draw_roofline

PEAKS = Peaks(num_threads=2, read_gb=40.0, dot_gops=800.0, fma_gflops=200.0)


def test_rates_and_their_shares():
    work = Work(num_bytes=5 * 10**9, int_ops=10**11, float_ops=10**10)
    assert Reached.of(work, 0.5, PEAKS) == Reached(10.0, 200.0, 20.0, 25.0, 25.0, 10.0)
    assert Reached.of(work, 0.5, None) == Reached(10.0, 200.0, 20.0, None, None, None)


def test_latency_has_vllms_fields():
    assert latency_fields([4.0, 1.0, 3.0, 2.0, 5.0]) == {
        "avg_latency": 3.0,
        "latencies": [4.0, 1.0, 3.0, 2.0, 5.0],
        "percentiles": {
            "10": pytest.approx(1.4),
            "25": 2.0,
            "50": 3.0,
            "75": 4.0,
            "90": pytest.approx(4.6),
            "99": pytest.approx(4.96),
        },
    }


def test_throughput_has_vllms_fields():
    assert throughput_fields(4.0, 8, 1280) == {
        "elapsed_time": 4.0,
        "num_requests": 8,
        "total_num_tokens": 1280,
        "requests_per_second": 2.0,
        "tokens_per_second": 320.0,
    }


def test_the_roofline_is_a_png(tmp_path):
    pytest.importorskip("matplotlib", reason="plots: pip install matplotlib")
    points = [Point(f"product {i}", Work(1000, 10**i, 0), 1e-6) for i in range(12)]
    draw_roofline(points, PEAKS, tmp_path / "a.png")
    draw_roofline([], PEAKS, tmp_path / "b.png")
    for name in ("a.png", "b.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
