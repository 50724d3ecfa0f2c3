"""A program: compute fixed steps on fixed models, print this process's path and the bits' digests.

`test_paths.py` runs it once for each instruction set, for compiled code belongs to a process.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

from backends.cpu.models import batch, spec, weights
from octavo.backends.cpu import backend, machine
from octavo.backends.cpu.rows import CpuRows
from octavo.model.spec import RopeSpec
from octavo.sampling.params import SamplingParams
from octavo.sampling.sampler import Sampler, SamplingRow


def digests() -> dict[str, str]:
    found = {}
    ids = np.random.default_rng(0).integers(0, 288, 700).tolist()
    for kind in ("Q4_0", "Q4_1", "Q8_0", "IQ4_NL", "F16", "BF16", "F32", "int8"):
        s = spec(
            hidden=96, inner=192, heads=6, kv_heads=2, head_dim=32, windows=(None, 40),
            rope=RopeSpec(10_000.0, 32, "half"), activation="gelu_tanh", qk_norm=True,
        )  # fmt: skip
        compute = backend.CpuBackend(
            s, weights(s, "F16" if kind == "int8" else kind), num_blocks=64, num_threads=2,
            quantization="int8" if kind == "int8" else None,
        )  # fmt: skip
        digest = hashlib.sha256()
        table = list(range(50))
        digest.update(compute.execute(batch([(ids[:600], 0, table)], [5, 599])).tobytes())
        digest.update(compute.execute(batch([([ids[600]], 600, table)])).tobytes())
        many = [([i], 600, table) for i in range(9)]
        digest.update(compute.execute(batch(many, stored=False)).tobytes())
        digest.update(compute.keys.tobytes() + compute.values.tobytes())
        found[kind] = digest.hexdigest()
        compute.close()
    found["sampling"] = sampling_digest(backend.CpuBackend(s, weights(s), num_blocks=8))
    return found


def sampling_digest(compute: backend.CpuBackend) -> str:
    """The digest of tokens and logprobs, chosen in several ways from rows of several lengths."""
    digest = hashlib.sha256()
    asked = (
        {"temperature": 0.0},
        {"temperature": 0.7, "top_p": 0.9},
        {"top_k": 40, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
        {"min_p": 0.02},
    )
    for size in (5, 1003, 40_000):
        logits = np.random.default_rng(size).normal(0, 3, (32, size)).astype(np.float32)
        rows = [
            SamplingRow(
                SamplingParams(logprobs=3, **asked[i % 4]), i, 0, [1, 2], [3, 3], frozenset()
            )
            for i in range(32)
        ]
        digest.update(repr(Sampler(CpuRows(compute)).sample(logits, rows)).encode())
    return digest.hexdigest()


if __name__ == "__main__":
    result = {"path": machine.DOT_PATH, "digests": digests(), "loaded": backend.STEP.was_loaded}
    print(json.dumps(result))
