"""The reference backend: against a naive forward pass, a real model's known answers, bad slots."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from backends.random_model import VARIANTS, random_backend, random_spec, random_tensors
from octavo.backends.base import NO_SLOT, InputBatch
from octavo.backends.reference import MAX_STORED, ReferenceBackend, silu
from octavo.model.loader import load_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from octavo.model.spec import ModelSpec


def naive_logits(spec: ModelSpec, tensors: dict, token_ids: Sequence[int]) -> np.ndarray:
    """A whole sequence, dense, in float64, one head and one pair at a time; nothing shared."""
    weights = {name: t.dequantize().astype(np.float64) for name, t in tensors.items()}

    def norm(vector, name):
        mean = sum(value * value for value in vector) / len(vector)
        return vector / math.sqrt(mean + spec.norm_eps) * weights[f"{name}.weight"]

    def project(vector, name):
        return weights[f"{name}.weight"] @ vector + weights.get(f"{name}.bias", 0.0)

    def rotate(head, position, rope):
        out = head.copy()
        for i in range(rope.dim // 2):
            if rope.layout == "interleaved":
                first, second = 2 * i, 2 * i + 1
            else:
                first, second = i, i + rope.dim // 2
            angle = position * rope.theta ** (-2 * i / rope.dim)
            turn = complex(head[first], head[second]) * complex(math.cos(angle), math.sin(angle))
            out[first], out[second] = turn.real, turn.imag
        return out

    def heads(vector, count, position, norm_name, rope=None):
        split = [vector[i * spec.head_dim : (i + 1) * spec.head_dim] for i in range(count)]
        if norm_name is None:
            return split
        if spec.qk_norm:
            split = [norm(head, norm_name) for head in split]
        return [rotate(head, position, rope) for head in split]

    hidden = [weights["token_embd.weight"][token] for token in token_ids]
    for layer in range(spec.num_layers):
        blk = f"blk.{layer}."
        rope, window = spec.layers[layer].rope, spec.layers[layer].window
        keys, values, queries = [], [], []
        for position, x in enumerate(hidden):
            x = norm(x, blk + "attn_norm")
            q, k, v = (project(x, f"{blk}attn_{name}") for name in "qkv")
            queries.append(heads(q, spec.num_heads, position, blk + "attn_q_norm", rope))
            keys.append(heads(k, spec.num_kv_heads, position, blk + "attn_k_norm", rope))
            values.append(heads(v, spec.num_kv_heads, position, None))
        for position in range(len(hidden)):
            seen = range(max(0, position - window + 1) if window else 0, position + 1)
            mixed = []
            for head in range(spec.num_heads):
                shared = head // (spec.num_heads // spec.num_kv_heads)
                scores = [
                    float(queries[position][head] @ keys[past][shared]) / math.sqrt(spec.head_dim)
                    for past in seen
                ]
                shares = [math.exp(score - max(scores)) for score in scores]
                mixed.append(
                    sum(w * values[past][shared] for past, w in zip(seen, shares, strict=True))
                    / sum(shares)
                )
            x = hidden[position] + project(np.concatenate(mixed), blk + "attn_output")
            y = norm(x, blk + "ffn_norm")
            gate = [g / (1 + math.exp(-g)) for g in project(y, blk + "ffn_gate")]
            hidden[position] = x + project(gate * project(y, blk + "ffn_up"), blk + "ffn_down")
    head = "token_embd" if spec.tied_embeddings else "output"
    return np.array([weights[f"{head}.weight"] @ norm(x, "output_norm") for x in hidden])


class Placed:
    """One sequence as a backend sees it: tokens, and the blocks they lie in."""

    def __init__(self, token_ids: Sequence[int], block_table: Sequence[int]) -> None:
        self.token_ids = list(token_ids)
        self.block_table = list(block_table)


def batch_of(*parts: tuple[Placed, int, int], block_size: int, stored: bool = True):
    """Return the batch that computes the tokens [start, stop) of each sequence, all logits."""
    ids, positions, slots, starts, lengths = [], [], [], [0], []
    tables = np.zeros((len(parts), max(len(s.block_table) for s, _, _ in parts)), np.int32)
    for i, (sequence, start, stop) in enumerate(parts):
        for position in range(start, stop):
            ids.append(sequence.token_ids[position])
            positions.append(position)
            block = sequence.block_table[position // block_size]
            slots.append(block * block_size + position % block_size if stored else NO_SLOT)
        starts.append(len(ids))
        lengths.append(stop)
        tables[i, : len(sequence.block_table)] = sequence.block_table
    return InputBatch(
        *(np.array(values, np.int32) for values in (ids, positions, slots, starts, lengths)),
        tables,
        np.arange(len(ids), dtype=np.int32),
    )


TOKENS = [7, 3, 3, 58, 0, 60, 12, 44, 7, 3, 21, 9, 33]


@pytest.mark.parametrize("spec", VARIANTS.values(), ids=VARIANTS.keys())
def test_it_agrees_with_a_naive_forward_pass(spec: ModelSpec) -> None:
    """Two sequences in one batch, in scattered blocks, one of them in two chunks."""
    backend = random_backend(spec, num_blocks=10, block_size=3)
    one = Placed(TOKENS, [9, 2, 7, 0, 4])
    other = Placed(TOKENS[::-1][:7], [1, 8, 3])
    first = backend.execute(batch_of((one, 0, 8), (other, 0, 7), block_size=3))
    second = backend.execute(batch_of((one, 8, 13), block_size=3))
    assert first.dtype == np.float32
    tensors = random_tensors(spec)
    whole = naive_logits(spec, tensors, one.token_ids)
    assert np.abs(np.concatenate([first[:8], second]) - whole).max() < 1e-4
    assert np.abs(first[8:] - naive_logits(spec, tensors, other.token_ids)).max() < 1e-4
    assert whole.std() > 1  # the tolerance is small beside what it judges


def test_only_the_wanted_rows_come_back_in_the_order_asked_for() -> None:
    spec = random_spec()
    batch = batch_of((Placed(TOKENS, range(5)), 0, 13), block_size=3)
    everything = random_backend(spec, num_blocks=5, block_size=3).execute(batch)
    wanted = np.array([12, 0, 5], np.int32)
    some = dataclasses.replace(batch, logits_indices=wanted)
    rows = random_backend(spec, num_blocks=5, block_size=3).execute(some)
    np.testing.assert_allclose(rows, everything[wanted], atol=1e-5)


def test_a_token_lies_in_its_block_at_its_offset() -> None:
    """Position t: block t // 16 of the table, offset t % 16."""
    backend = random_backend(random_spec(), num_blocks=4, block_size=16)
    tokens = [t % 61 for t in range(20)]
    backend.execute(batch_of((Placed(tokens, [3, 1]), 0, 20), block_size=16))
    filled = np.flatnonzero(np.abs(backend.keys[0]).sum(axis=(1, 2)))
    assert filled.tolist() == [*range(16, 20), *range(48, 64)]


def test_a_token_without_a_slot_is_computed_and_not_stored() -> None:
    backend = random_backend(random_spec(), num_blocks=5, block_size=3)
    sequence = Placed(TOKENS[:12], [4, 1, 0, 2])
    before = backend.execute(batch_of((sequence, 0, 12), block_size=3))
    stored = backend.keys.copy(), backend.values.copy()
    again = backend.execute(batch_of((sequence, 11, 12), block_size=3, stored=False))
    np.testing.assert_allclose(again[0], before[11], atol=1e-5)
    assert np.array_equal(backend.keys, stored[0])
    assert np.array_equal(backend.values, stored[1])
    assert not backend.keys[:, 9:12].any()  # slot -1 is not the last slot either


def test_what_lies_in_stale_slots_changes_nothing() -> None:
    batches = [
        batch_of((Placed(TOKENS, [4, 1, 0, 2, 6]), 0, 5), block_size=3),
        batch_of((Placed(TOKENS, [4, 1, 0, 2, 6]), 5, 13), block_size=3),
    ]
    clean = random_backend(random_spec(), num_blocks=7, block_size=3)
    dirty = random_backend(random_spec(), num_blocks=7, block_size=3)
    dirty.keys.fill(np.nan)
    dirty.values.fill(np.nan)
    for batch in batches:
        assert np.array_equal(clean.execute(batch), dirty.execute(batch))


def test_blocks_are_copied_whole_and_one_after_another() -> None:
    backend = random_backend(random_spec(), num_blocks=4, block_size=3)
    rng = np.random.default_rng(1)
    backend.keys[:] = rng.normal(size=backend.keys.shape)
    backend.values[:] = rng.normal(size=backend.values.shape)
    keys, values = backend.keys.copy(), backend.values.copy()
    backend.copy_blocks([(0, 2), (2, 3), (1, 0)])
    for store, old in ((backend.keys, keys), (backend.values, values)):
        for block, source in enumerate([1, 1, 0, 0]):
            assert np.array_equal(
                store[:, block * 3 : block * 3 + 3], old[:, source * 3 : source * 3 + 3]
            )
    backend.copy_blocks([])


@pytest.mark.parametrize("kv_dtype", [np.float16, np.float32])
def test_stored_values_are_clamped_to_what_a_float16_holds(kv_dtype: object) -> None:
    spec = random_spec(attention_bias=True)
    tensors = random_tensors(spec)
    tensors["blk.0.attn_k.bias"].values[:] = 1e6
    tensors["blk.0.attn_v.bias"].values[:] = -1e6
    backend = ReferenceBackend(spec, tensors, num_blocks=2, block_size=16, kv_dtype=kv_dtype)
    logits = backend.execute(batch_of((Placed(TOKENS, [0]), 0, 13), block_size=16))
    assert MAX_STORED == 65504.0
    assert backend.keys.dtype == kv_dtype
    assert (backend.values[0, :13] == -65504).all()
    assert np.abs(backend.keys[0, :13].astype(np.float64)).max() == 65504
    assert np.isfinite(logits).all()
    kv_size = spec.num_kv_heads * spec.head_dim
    assert backend.num_clamped >= 13 * kv_size  # every value of layer 0, and keys as they rotate


def test_float16_storage_costs_little() -> None:
    batch = batch_of((Placed(TOKENS, range(5)), 0, 13), block_size=3)
    exact, rounded = (
        random_backend(random_spec(), num_blocks=5, block_size=3, kv_dtype=dtype).execute(batch)
        for dtype in (np.float32, np.float16)
    )
    assert 0 < np.abs(exact - rounded).max() < 0.05


def test_extreme_activations_do_not_overflow() -> None:
    x = np.array([-1e30, -200, -1, 0, 1, 200, 1e30], np.float32)
    expected = [0, 0, -1 / (1 + math.e), 0, 1 / (1 + math.exp(-1)), 200, 1e30]
    np.testing.assert_allclose(silu(x), expected, rtol=1e-6)


# -- a real model -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> ReferenceBackend:
    model = load_model(smollm2_path)
    return ReferenceBackend(model.spec, model.tensors, num_blocks=4)


def test_smollm2_answers_as_known(smollm2: ReferenceBackend) -> None:
    """Greedy after "The capital of France is"."""
    sequence = Placed([504, 3575, 282, 4649, 314], [2, 0])
    start = 0
    for _ in range(12):
        stop = len(sequence.token_ids)
        logits = smollm2.execute(batch_of((sequence, start, stop), block_size=16))[-1]
        if start == 0:
            top = np.argsort(-logits)[:5]
            assert top.tolist() == [7042, 260, 4528, 2250, 1315]
            expected = [17.371, 14.889, 13.245, 13.009, 12.952]
            np.testing.assert_allclose(logits[top], expected, atol=0.01)
        sequence.token_ids.append(int(logits.argmax()))
        start = stop
    assert sequence.token_ids[5:] == [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33]
