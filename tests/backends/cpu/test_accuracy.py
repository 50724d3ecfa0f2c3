"""How far the compiled backend is from the reference, and that int8 activations explain it."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from backends.cpu.emulation import EmulatedBackend
from backends.cpu.models import batch, spec, weights
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.model.loader import load_model
from octavo.model.spec import RopeSpec

TEXT = Path(__file__).parents[4] / "shared" / "text" / "tinyshakespeare_400k.txt.gz"


def error(x, y):
    return float(np.linalg.norm(x - y) / np.linalg.norm(y))


def divergence(x, y):
    """Mean KL(y || x) over rows of logits."""

    def log_softmax(z):
        z = z.astype(np.float64) - z.max(axis=1, keepdims=True)
        return z - np.log(np.exp(z).sum(axis=1, keepdims=True))

    p, q = log_softmax(y), log_softmax(x)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


FAMILIES = {
    "llama": {},
    "qwen3": {"qk_norm": True, "rope": RopeSpec(1e6, 16, "half"), "tied": False},
    "qwen2": {"attention_bias": True, "rope": RopeSpec(1e6, 16, "half")},
    "gemma2": {
        "post_norms": True,
        "activation": "gelu_tanh",
        "embedding_scale": 8.0,
        "windows": (12, None),
        "attention_scale": 0.2,
    },
    "gpt2": {
        "norm": "layer",
        "gated": False,
        "activation": "gelu_tanh",
        "attention_bias": True,
        "projection_bias": True,
        "learned_positions": True,
        "rope": None,
        "context": 64,
    },
    "smollm3": {"rope": RopeSpec(5e6, 16, "half", magnitude=1.1), "heads": 6, "kv_heads": 1},
    "partial": {"rope": RopeSpec(1e4, 8, "half"), "head_dim": 80, "heads": 2, "kv_heads": 2},
}


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "IQ4_NL"])
def test_every_family_in_every_format(family, kind):
    s = spec(**FAMILIES[family])
    tensors = weights(s, kind)
    ids = np.random.default_rng(0).integers(0, 288, 40).tolist()
    step = batch([(ids, 0, [2, 0, 1]), (ids[:7], 0, [3])])
    exact = ReferenceBackend(s, tensors, num_blocks=4).execute(step)
    got = CpuBackend(s, tensors, num_blocks=4, num_threads=2).execute(step)
    if kind in ("F32", "F16", "BF16"):
        assert error(got, exact) < 2e-3  # a float16 key or value that rounds the other way
        return
    emulated = EmulatedBackend(s, tensors, num_blocks=4).execute(step)
    assert error(got, exact) <= 1.2 * error(emulated, exact)


def text_ids(model, count):
    if not TEXT.exists():
        pytest.skip(f"{TEXT} is not here")
    text = gzip.decompress(TEXT.read_bytes()).decode()[: 8 * count]
    return model.tokenizer.encode(text)[:count]


def test_real_text_against_the_reference(smollm2_path):
    model = load_model(smollm2_path)
    ids = text_ids(model, 200)
    step = batch([(ids, 0, list(range(13)))])
    make = {"num_blocks": 13}
    exact = ReferenceBackend(model.spec, model.tensors, **make).execute(step)
    emulated = EmulatedBackend(model.spec, model.tensors, **make).execute(step)
    got = CpuBackend(model.spec, model.tensors, **make).execute(step)
    bar, ours = error(emulated, exact), error(got, exact)
    kl_bar, kl = divergence(emulated, exact), divergence(got, exact)
    agreement = float((got.argmax(axis=1) == exact.argmax(axis=1)).mean())
    bar_agreement = float((emulated.argmax(axis=1) == exact.argmax(axis=1)).mean())
    print(
        f"relative L2 {ours:.4f} (emulation {bar:.4f}), KL {kl:.5f} ({kl_bar:.5f}), "
        f"top-1 {agreement:.3f} ({bar_agreement:.3f})"
    )
    assert ours <= 1.2 * bar
    assert kl <= 1.2 * kl_bar
    assert agreement >= bar_agreement - 0.02
