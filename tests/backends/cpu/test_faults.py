"""What goes wrong in one request's arithmetic is counted, told, and nobody else's."""

from __future__ import annotations

import numpy as np
import pytest

from backends.cpu.models import spec, tensor, weights
from backends.cpu.test_equalities import fingerprint
from octavo import LLM
from octavo.backends.cpu.backend import CpuBackend
from octavo.cache.manager import KVCacheManager
from octavo.cache.policies import find_policy
from octavo.engine.core import EngineCore
from octavo.sampling.params import SamplingParams
from tiny_model import tiny_model

BAD = 7  # a token whose embedding is spoiled
STALE = (0x0000, 0x7E00, 0xFC00)  # 0, NaN and -infinity, in float16


@pytest.fixture(scope="module")
def model():
    s = spec(tied=False)
    return s, weights(s, "Q8_0", kinds={"token_embd": "F32"})


def spoiled(tensors, name, value):
    """The tensors with the row BAD of one set to ``value``."""
    values = tensors[name].dequantize()
    values[BAD] = value
    return {**tensors, name: tensor(name, values, "F32")}


def make_core(s, tensors, stale=0):
    backend = CpuBackend(s, tensors, num_blocks=24, num_threads=2)
    backend.keys[:] = backend.values[:] = stale
    cache = KVCacheManager(24, 16, find_policy("lru"))
    return EngineCore(backend, cache, max_num_seqs=4, max_num_batched_tokens=20, max_model_len=200)


def serve(core, prompts):
    """Serve the prompts together; return the requests."""
    params = SamplingParams(
        max_tokens=20, seed=3, logprobs=3, ignore_eos=True, logit_bias={BAD: -100}
    )
    requests = [core.add_request(str(i), list(ids), params) for i, ids in enumerate(prompts)]
    while core.has_requests:
        core.step()
    core.cache.check_invariants([])
    return requests


NEIGHBOURS = [tuple(range(20, 57)), tuple(range(20, 40)), tuple(range(90, 95))]


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("stale", STALE)
def test_a_spoiled_request_fails_alone_and_is_counted(model, value, stale):
    s, tensors = model
    usual = [fingerprint(request) for request in serve(make_core(s, tensors), NEIGHBOURS)]
    core = make_core(s, spoiled(tensors, "token_embd.weight", value), stale)
    first, bad, *others = serve(core, [NEIGHBOURS[0], (*range(20, 40), BAD, 9), *NEIGHBOURS[1:]])
    assert bad.error == "logits contain NaN"
    assert bad.finish_reason.value == "error"
    assert bad.output_token_ids == []
    assert core.num_corrupted == 1
    assert [fingerprint(request) for request in (first, *others)] == usual
    # Its blocks are used again, full of NaN, by those who come next.
    assert [fingerprint(request) for request in serve(core, NEIGHBOURS)] == usual
    assert core.num_corrupted == 1


def test_values_out_of_range_are_counted_and_the_answer_stands(model):
    s, tensors = model
    name = "blk.0.attn_v.weight"
    large = {**tensors, name: tensor(name, tensors[name].dequantize() * np.float32(1e6), "F32")}
    core = make_core(s, large)
    assert core.num_clamped == 0
    (request,) = serve(core, NEIGHBOURS[:1])
    assert request.error is None
    assert core.num_clamped > 0


def test_a_program_and_a_command_are_told(tmp_path, monkeypatch):
    path = tiny_model(tmp_path / "tiny.gguf")
    llm = LLM(str(path), num_kv_blocks=32)
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    llm.generate("x", params)
    assert llm.faults == ()
    execute = CpuBackend.execute

    def broken(self, batch):
        return execute(self, batch) * np.float32(np.nan)

    monkeypatch.setattr(CpuBackend, "execute", broken)
    monkeypatch.setattr(CpuBackend, "num_clamped", 12)
    (output,) = llm.generate("x", params)
    assert (output.error, output.outputs[0].finish_reason) == (
        "logits contain NaN",
        "error",
    )
    llm.generate("y", params)
    assert llm.faults[0] == "2 requests failed: their logits held NaN or infinity"
    assert llm.faults[1].startswith("12 keys or values lay beyond ±65504")
