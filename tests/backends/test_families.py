"""Every family computes what transformers computes, from both formats, however it is prefilled.

The oracle is kept in ``data/families``; where transformers is installed, it is asked again.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from backends.cpu.emulation import EmulatedBackend
from backends.cpu.models import batch, tensor
from family_cases import NAMES, SOURCES, Case, load_case, transformers_case
from family_gguf import to_gguf
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.cache.manager import KVCacheManager
from octavo.cache.policies import find_policy
from octavo.engine.core import EngineCore
from octavo.model.families import FAMILIES
from octavo.model.files.gguf import GGUFFile
from octavo.model.gguf_spec import spec_from_gguf
from octavo.model.hf_spec import spec_from_hf
from octavo.model.weights import gguf_weights, hf_weights
from octavo.sampling.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy.typing as npt

    from octavo.backends.base import InputBatch
    from octavo.model.spec import ModelSpec
    from octavo.model.views import WeightTensor

    Array = npt.NDArray[np.float32]

TOLERANCE = 1e-3
BLOCK_SIZE = 4
NUM_BLOCKS = 24

case_of = cache(load_case)
everywhere = pytest.mark.parametrize(
    ("name", "form"), [(name, form) for name in NAMES for form in ("gguf", "hf")]
)


class Recording:
    """Keeps the logits that its backend returns, by the position of their token."""

    rows: dict[int, Array]

    def execute(self, batch: InputBatch) -> Array:
        logits: Array = super().execute(batch).copy()  # type: ignore[misc]
        self.rows |= dict(zip(batch.positions[batch.logits_indices].tolist(), logits, strict=True))
        return logits


class Recorder(Recording, ReferenceBackend):
    """The reference, recorded."""


class CompiledRecorder(Recording, CpuBackend):
    """The compiled backend, recorded."""


def open_case(case: Case, form: str, folder: Path) -> tuple[ModelSpec, Mapping[str, WeightTensor]]:
    """Read a case through one of the two formats."""
    if form == "hf":
        spec = spec_from_hf(case.config, folder)
        return spec, hf_weights(case.tensors, spec, folder)
    path = folder / "m.gguf"
    path.write_bytes(to_gguf(case.config, case.weights))
    file = GGUFFile.open(path)
    spec = spec_from_gguf(file)
    return spec, gguf_weights(file, spec)


def make_engine(
    case: Case,
    spec: ModelSpec,
    tensors: Mapping[str, WeightTensor],
    *,
    compiled: bool = False,
    **settings: Any,
) -> tuple[EngineCore, dict[int, Array]]:
    """Return an engine for requests as long as the case's prompt, and the logits it computes."""
    length = len(case.tokens)
    spec = spec.for_context(length)
    backend: Recorder | CompiledRecorder
    if compiled:
        backend = CompiledRecorder(spec, tensors, num_blocks=NUM_BLOCKS, num_threads=2)
    else:
        backend = Recorder(
            spec, tensors, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, kv_dtype=np.float32
        )
    backend.rows = {}
    cache = KVCacheManager(NUM_BLOCKS, backend.block_size, find_policy("lru"), model=b"tiny")
    budget = {"max_num_batched_tokens": 256, "max_num_seqs": 4, **settings}
    return EngineCore(backend, cache, max_model_len=length, **budget), backend.rows


def run(core: EngineCore, tokens: list[int], **params: Any) -> int:
    """Score a prompt; return how many of its tokens were found in the cache."""
    request = core.add_request("r", tokens, SamplingParams(max_tokens=0, **params))
    while core.has_requests:
        core.step()
    return request.num_cached_tokens


def error(case: Case, rows: Mapping[int, Array]) -> float:
    """Return the largest difference from the golden over the rows that were computed."""
    return max(float(np.abs(row - case.logits[i]).max()) for i, row in rows.items())


def test_there_is_a_golden_for_every_family() -> None:
    assert set(NAMES) == set(SOURCES)
    classes = {case_of(name).config["architectures"][0] for name in NAMES}
    assert classes == {family.hf_class for family in FAMILIES}


@pytest.mark.parametrize("name", NAMES)
def test_the_logits_are_spread(name: str) -> None:
    """Else 1e-3 would say little."""
    case = case_of(name)
    assert 2.5 < case.logits.std() < 4
    assert (case.logits.argmax(axis=1) != np.array(case.tokens)).mean() > 0.5
    window = spec_from_hf(case.config, name).cache_window
    if window is not None:
        assert len(case.tokens) >= 2 * window or name.startswith("phi3")
        assert len(case.tokens) > window


@everywhere
def test_prefilled_whole(name: str, form: str, tmp_path: Path) -> None:
    case = case_of(name)
    core, rows = make_engine(case, *open_case(case, form, tmp_path))
    run(core, case.tokens, prompt_logprobs=0)
    run(core, case.tokens)
    assert len(rows) == len(case.tokens)
    assert error(case, rows) < TOLERANCE


@everywhere
@pytest.mark.parametrize("chunk", [1, 7])
def test_prefilled_in_chunks(name: str, form: str, chunk: int, tmp_path: Path) -> None:
    case = case_of(name)
    core, rows = make_engine(
        case, *open_case(case, form, tmp_path), max_num_batched_tokens=chunk, max_num_seqs=1
    )
    run(core, case.tokens, prompt_logprobs=0)
    assert core.num_steps == -(-len(case.tokens) // chunk)
    assert len(rows) >= len(case.tokens) - 1
    assert error(case, rows) < TOLERANCE


@everywhere
def test_found_in_the_cache(name: str, form: str, tmp_path: Path) -> None:
    case = case_of(name)
    core, rows = make_engine(case, *open_case(case, form, tmp_path))
    length = len(case.tokens)
    run(core, case.tokens[: length - 10])
    assert run(core, case.tokens[: length - 3]) >= length - 10 - BLOCK_SIZE
    assert run(core, case.tokens) >= length - 3 - BLOCK_SIZE
    assert run(core, case.tokens) == length - 1
    assert rows.keys() == {length - 11, length - 4, length - 1}
    assert error(case, rows) < TOLERANCE


def quantised(tensors: Mapping[str, WeightTensor], kind: str) -> Mapping[str, WeightTensor]:
    """Return a model whose matrices are of type ``kind``, where their rows are whole blocks."""
    made = dict(tensors)
    for name, one in tensors.items():
        if len(one.shape) == 2 and one.shape[1] % 32 == 0 and not name.startswith("position"):
            made[name] = tensor(name, one.dequantize(), kind)
    return made


def distance(logits: Array, golden: Array) -> float:
    return float(np.linalg.norm(logits - golden) / np.linalg.norm(golden))


@pytest.mark.parametrize("form", ["gguf", "hf"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "linear"])  # heads of 8
@pytest.mark.parametrize(("kind", "limit"), [("F32", 2e-3), ("Q8_0", 0.07)])
def test_compiled(name: str, form: str, kind: str, limit: float, tmp_path: Path) -> None:
    """What it is off is what its storage costs in NumPy too: float16 keys and values and, where
    weights are quantised, those weights and int8 activations (`EmulatedBackend`).
    """
    case = case_of(name)
    spec, tensors = open_case(case, form, tmp_path)
    if kind != "F32":
        tensors = quantised(tensors, kind)
    core, rows = make_engine(
        case, spec, tensors, compiled=True, max_num_batched_tokens=7, max_num_seqs=1
    )
    run(core, case.tokens, prompt_logprobs=0)
    run(core, case.tokens)  # the last token, found in the cache up to there
    got = np.stack([rows[i] for i in range(len(case.tokens))])
    emulated = EmulatedBackend(spec.for_context(len(case.tokens)), tensors, num_blocks=4)
    bar = distance(emulated.execute(batch([(case.tokens, 0, [2, 0, 1])])), case.logits)
    assert distance(got, case.logits) <= 1.1 * bar
    assert bar < limit


def other_ropes(spec: ModelSpec, **changes: Any) -> ModelSpec:
    """Return the spec with every rope changed."""
    return replace(
        spec,
        layers=tuple(
            replace(layer, rope=None if layer.rope is None else replace(layer.rope, **changes))
            for layer in spec.layers
        ),
    )


def other_layers(spec: ModelSpec, **changes: Any) -> ModelSpec:
    return replace(spec, layers=tuple(replace(layer, **changes) for layer in spec.layers))


MUTANTS = {
    "llama": [lambda spec: other_ropes(spec, theta=9000.0)],
    "llama3": [
        lambda spec: other_ropes(spec, factors=None),
        lambda spec: other_ropes(spec, factors=(*spec.layers[0].rope.factors[:-1], 1.0)),
    ],
    "linear": [lambda spec: other_ropes(spec, factors=None)],
    "mistral": [
        lambda spec: other_layers(spec, window=None),
        lambda spec: other_layers(spec, window=spec.cache_window + 1),
    ],
    "qwen2": [
        lambda spec: other_layers(spec, window=None),
        lambda spec: other_layers(spec, window=9),
    ],
    "qwen3": [lambda spec: replace(spec, qk_norm=False)],
    "gemma3": [
        lambda spec: other_layers(spec, window=None),
        lambda spec: other_layers(spec, window=8),
        lambda spec: other_layers(spec, rope=spec.layers[0].rope),
        lambda spec: other_layers(spec, rope=spec.layers[5].rope),
        lambda spec: replace(spec, attention_scale=None),
        lambda spec: replace(spec, embedding_scale=1.0),
        lambda spec: replace(spec, post_norms=False),
        lambda spec: replace(spec, activation="silu"),
    ],
    "gemma3_local": [lambda spec: other_layers(spec, window=None)],
    "phi3_short": [
        lambda spec: other_ropes(spec, magnitude=1.0),
        lambda spec: other_ropes(spec, factors=spec.layers[0].rope.long_factors),
        lambda spec: other_layers(spec, window=None),
    ],
    "phi3_long": [
        lambda spec: other_ropes(spec, magnitude=1.0),
        lambda spec: other_ropes(spec, original_context=999),
        lambda spec: other_layers(spec, window=None),
    ],
    "smollm3": [lambda spec: other_layers(spec, rope=spec.layers[0].rope)],
    "gpt2": [
        lambda spec: replace(spec, activation="silu"),
        lambda spec: replace(spec, learned_positions=False),
        lambda spec: replace(spec, norm="rms"),
    ],
}
"""Specs that differ in what the case is there to show."""


@pytest.mark.parametrize(
    ("name", "number"),
    [(name, i) for name, mutants in MUTANTS.items() for i in range(len(mutants))],
)
def test_a_golden_tells_a_wrong_spec(name: str, number: int, tmp_path: Path) -> None:
    case = case_of(name)
    spec, tensors = open_case(case, "hf", tmp_path)
    core, rows = make_engine(case, MUTANTS[name][number](spec), tensors)
    run(core, case.tokens, prompt_logprobs=0)
    assert error(case, rows) > 30 * TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_the_goldens_are_what_transformers_says(name: str, tmp_path: Path) -> None:
    reason = "transformers is not installed: pip install torch transformers safetensors"
    pytest.importorskip("transformers", reason=reason)
    kept, now = case_of(name), transformers_case(name, tmp_path)
    assert (now.shapes, now.tokens) == (kept.shapes, kept.tokens)
    assert np.abs(now.logits - kept.logits).max() < 1e-4
    assert spec_from_hf(now.config, tmp_path) == spec_from_hf(kept.config, tmp_path)
