"""The compiled backend behind `LLM`: chosen by its name, refused where it cannot do as asked."""

from __future__ import annotations

import os

import numpy as np
import pytest

from backends.cpu.models import batch, spec, weights
from octavo import LLM, SamplingParams
from octavo.backends.cpu.backend import CpuBackend
from octavo.errors import ConfigError
from tiny_model import tiny_model


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", tensor_type="Q8_0"))


def test_it_agrees_with_the_reference(path):
    prompts = ["It was the best of times", "a b c d e f g"]
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    llm = LLM(path, num_kv_blocks=64)  # the default
    assert isinstance(llm.core.backend, CpuBackend)
    got = llm.generate(prompts, params)
    wanted = LLM(path, num_kv_blocks=64, backend="reference").generate(prompts, params)
    for one, other in zip(got, wanted, strict=True):
        assert one.outputs[0].token_ids[:6] == other.outputs[0].token_ids[:6]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"backend": "gpu"}, "known are cpu, reference"),
        ({"kv_cache_dtype": "float32"}, "stores float16"),
        ({"block_size": 8}, "blocks of 16"),
        ({"quantization": "int4"}, "one of int8"),
        ({"quantization": "int8", "backend": "reference"}, "the cpu backend rounds them"),
    ],
)
def test_what_it_cannot_do_is_refused(path, setting, message):
    with pytest.raises(ConfigError, match=message):
        LLM(path, **{"num_kv_blocks": 64, **setting})


def test_int8_rounds_floats(tmp_path):
    model = str(tiny_model(tmp_path / "m.gguf", tensor_type="F16"))
    logits = {}
    for quantization in (None, "int8"):
        llm = LLM(model, num_kv_blocks=64, backend="cpu", quantization=quantization)
        logits[quantization] = llm.core.backend.execute(batch([([5, 6, 7], 0, [2])]))
    error = np.linalg.norm(logits["int8"] - logits[None])
    assert 0 < error < 0.05 * np.linalg.norm(logits[None])


def test_int8_where_nothing_is_to_be_rounded_is_refused(tmp_path):
    model = str(tiny_model(tmp_path / "m.gguf", tensor_type="Q8_0"))
    with pytest.raises(ConfigError, match=r"this model has none: .* leave it out"):
        LLM(model, num_kv_blocks=64, quantization="int8")


def test_the_team_is_called_again_after_it_was_sent_home():
    s = spec()
    compute = CpuBackend(s, weights(s), num_blocks=8, num_threads=3)
    step = batch([([5, 6, 7], 0, [2])])
    first = compute.execute(step).copy()
    compute.close()
    compute.close()
    assert compute.execute(step).tobytes() == first.tobytes()


def test_a_larger_batch_gets_a_larger_workspace():
    s = spec()
    compute = CpuBackend(s, weights(s), num_blocks=200, num_threads=2)
    outputs = []
    for count in (1, 40, 300, 40, 1):
        ids = np.arange(count) % 288
        outputs.append(compute.execute(batch([(ids, 0, list(range(20)))], [0]))[0].tobytes())
    assert len(set(outputs)) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking a process with threads
def test_a_forked_child_has_a_team_of_its_own():
    s = spec()
    compute = CpuBackend(s, weights(s), num_blocks=8, num_threads=2)
    step = batch([([5, 6, 7], 0, [2])])
    usual = compute.execute(step).tobytes()
    child = os.fork()
    if child == 0:
        same = compute.execute(step).tobytes() == usual
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert compute.execute(step).tobytes() == usual
