"""The selftest and the perplexity, on a tiny model."""

from __future__ import annotations

import functools
import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

from octavo import LLM
from octavo.backends.cpu.machine import is_x86
from octavo.cli.app import app
from octavo.errors import InvalidRequestError
from octavo.evaluate import paths
from octavo.evaluate.perplexity import perplexity
from octavo.evaluate.selftest import Selftest
from octavo.model.loader import load_model
from tiny_model import tiny_model

SHAKESPEARE = Path(__file__).parents[3] / "shared" / "text" / "tinyshakespeare_400k.txt.gz"
TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 4


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_model(
        tmp_path_factory.mktemp("models") / "tiny.gguf", tensor_type="Q8_0", context_length=1024
    )


def test_the_selftest_passes_and_every_check_happened(path):
    checks = list(Selftest(load_model(path), num_threads=2).checks())
    others = [path.name for path in paths.other_paths()]
    assert [check.number for check in checks] == [0, 1, 2, 3, 4, 6, 6] + [6] * len(others)
    assert [check.name for check in checks if check.passed is None] == others
    assert not any(check.passed is False for check in checks)


def path_checks(path, told=None):
    test = Selftest(load_model(path), num_threads=2, paths=True, say=told)
    names = [path.name for path in paths.other_paths()]
    return [check for check in test.checks() if check.name in names]


@pytest.mark.skipif(not paths.other_paths(), reason="this machine has one way to compute")
def test_the_selftest_computes_on_every_path(path):
    told = []
    found = path_checks(path, told.append)
    assert [(check.name, check.passed) for check in found] == [
        (path.name, True) for path in paths.other_paths()
    ]
    assert any("AVX2" in line for line in told) or not is_x86()


@pytest.mark.parametrize(
    ("spoil", "detail"),
    [
        (lambda run, *asked: [run(*asked)[0][::-1], *run(*asked)[1:]], "1 of 8 requests differ"),
        (lambda _run, *_asked: -4, "ended with -4"),
    ],
)
def test_the_selftest_sees_a_path_that_differs(path, monkeypatch, spoil, detail):
    def run(_path, model, num_threads):
        return paths.digests(Selftest(load_model(model), num_threads=num_threads).together())

    one = paths.InstructionPath("elsewhere", {})
    monkeypatch.setattr("octavo.evaluate.selftest.other_paths", lambda: [one])
    monkeypatch.setattr("octavo.evaluate.selftest.run_path", run)
    *_, last = Selftest(load_model(path), paths=True).checks()
    assert (last.name, last.passed) == ("elsewhere", True)
    monkeypatch.setattr("octavo.evaluate.selftest.run_path", functools.partial(spoil, run))
    *_, last = Selftest(load_model(path), paths=True).checks()
    assert not last.passed
    assert detail in last.detail


def test_the_command_exits_with_1_only_for_what_differs(path, monkeypatch, capsys):
    def run(*flags):
        with pytest.raises(SystemExit) as ended:
            app(args=["selftest", str(path), "--json", *flags], prog_name="octavo")
        rows = json.loads(capsys.readouterr().out)
        return int(ended.value.code or 0), {row["name"]: row["passed"] for row in rows}

    one = paths.InstructionPath("elsewhere", {})
    monkeypatch.setattr("octavo.evaluate.selftest.other_paths", lambda: [one])
    monkeypatch.setattr("octavo.evaluate.selftest.run_path", lambda *_: 1)
    code, rows = run()
    assert (code, rows["elsewhere"]) == (0, None)
    code, rows = run("--paths")
    assert (code, rows.pop("elsewhere"), set(rows.values())) == (1, False, {True})


def test_the_selftest_sees_a_difference(path, monkeypatch):
    from octavo.backends.cpu.backend import CpuBackend

    execute = CpuBackend.execute

    def spoiled(self, batch):
        logits = execute(self, batch)
        if batch.num_seqs > 2:
            logits[0] = np.nextafter(logits[0], np.float32(np.inf))
        return logits

    monkeypatch.setattr(CpuBackend, "execute", spoiled)
    failed = [check.number for check in Selftest(load_model(path)).checks() if not check.passed]
    assert 1 in failed


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_perplexity_is_that_of_the_logprobs(path, backend):
    llm = LLM(str(path), backend=backend, num_kv_blocks=80)
    seen = []
    found = perplexity(llm, TEXT, window=64, on_window=lambda i, n: seen.append((i, n)))
    ids = llm.tokenizer.encode(TEXT)
    assert found.num_windows == math.ceil(len(ids) / 64) == len(seen)
    assert found.num_tokens == len(ids) - found.num_windows
    assert 5 < found.perplexity < 100_000
    assert perplexity(llm, TEXT, window=64).perplexity == found.perplexity
    fewer = perplexity(llm, TEXT, window=64, max_tokens=65)
    assert fewer.num_tokens == 63


def test_both_backends_agree(path):
    values = [
        perplexity(LLM(str(path), backend=backend, num_kv_blocks=80), TEXT).perplexity
        for backend in ("cpu", "reference")
    ]
    assert abs(math.log(values[0] / values[1])) < 0.02


def test_the_real_models_perplexity_is_the_references(smollm2_path):
    """The reference's 46.584 takes minutes; docs/log.md has it."""
    if not SHAKESPEARE.exists():
        pytest.skip(f"needs {SHAKESPEARE.name} in the shared folder of texts")
    text = gzip.decompress(SHAKESPEARE.read_bytes()).decode()
    found = perplexity(LLM(smollm2_path, max_model_len=512), text, max_tokens=4096)
    assert found.num_tokens == 4088
    assert found.perplexity == pytest.approx(46.584, rel=0.005)


def test_an_impossible_window_is_refused(path):
    llm = LLM(str(path), backend="reference", num_kv_blocks=8, max_model_len=128)
    with pytest.raises(InvalidRequestError, match="window is 1000"):
        perplexity(llm, TEXT, window=1000)
    with pytest.raises(InvalidRequestError, match="at least 2"):
        perplexity(llm, "a", window=16)
