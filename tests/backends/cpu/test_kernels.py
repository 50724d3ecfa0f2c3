"""Every kernel against its plain-Python twin, bit for bit, over odd shapes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.cpu import drivers, twins
from backends.cpu.models import tensor
from octavo.backends.cpu.formats import FORMATS, ROUNDED, blocks_of
from octavo.backends.cpu.layout import CHUNK, CLAMPED, K_CHUNK, MAX_ROWS, new_sync
from octavo.backends.cpu.packing import WeightPlan, aligned, padded
from octavo.backends.cpu.tiles import codes_stride
from octavo.errors import ConfigError
from octavo.model.files.quants import BLOCK_LAYOUTS, SUPPORTED_TYPES, GGMLType

F = np.float32
few = settings(max_examples=30, deadline=None)


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, np.float32).view(np.uint32)


def same(x: np.ndarray, y: np.ndarray) -> bool:
    """Equal to the last bit; NaN of any payload equals NaN."""
    return bool(((bits(x) == bits(y)) | (np.isnan(x) & np.isnan(y))).all())


def array(values: np.ndarray, spare: int = 128) -> np.ndarray:
    """A flat aligned copy with zeros behind."""
    room = aligned(values.size + spare, values.dtype)
    room[: values.size] = values.reshape(-1)
    return room


# -- functions ------------------------------------------------------------------------------------


def test_functions_have_the_bits_of_their_twins_and_are_accurate():
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [
            rng.uniform(-100, 100, 4000),
            rng.normal(0, 3, 4000),
            [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 88.0, -87.3],
        ]
    ).astype(F)
    x = np.concatenate([x, np.zeros(-len(x) % 16, F)])
    a, b, c = (np.empty_like(x) for _ in range(3))
    drivers.call(drivers.functions, x, a, b, c)
    with np.errstate(all="ignore"):
        assert same(a, twins.exp(x))
        assert same(b, twins.silu(x))
        assert same(c, twins.gelu_tanh(x))
        inside = (np.abs(x) < 87) & np.isfinite(x)
        exact = np.exp(x[inside].astype(np.float64))
    assert a[x == 0].tolist() == [1.0] * int((x == 0).sum())
    ulp = np.spacing(exact.astype(F)).astype(np.float64)
    assert (np.abs(a[inside] - exact) / ulp).max() < 1.05


# -- rows -----------------------------------------------------------------------------------------


@few
@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 2**32 - 1), st.booleans())
def test_quantise(num_rows, groups, seed, spoil):
    rng = np.random.default_rng(seed)
    x = (rng.normal(0, 1, (num_rows, groups * 32)) * 10.0 ** rng.integers(-35, 20)).astype(F)
    if spoil:
        x[rng.integers(num_rows), rng.integers(groups * 32)] = rng.choice([np.nan, np.inf, -np.inf])
        x[rng.integers(num_rows), :32] = 0
    codes = np.zeros(x.size, np.int8)
    scales, sums, half, starts = (np.zeros(x.size // n, F) for n in (32, 32, 16, 8))
    drivers.call(
        drivers.quantise, array(x)[: x.size], x.shape[1], codes, scales, sums, half, starts
    )
    expected = twins.quantise(x)
    assert codes.tolist() == expected[0].reshape(-1).tolist()
    for got, wanted in zip((scales, sums, half), expected[1:4], strict=True):
        assert same(got, wanted.reshape(-1))
    # A spoiled group's are multiplied by its scale, NaN, whatever they are.
    good = np.isfinite(expected[1])
    good = np.concatenate([good, good, np.repeat(good, 2, axis=1)], axis=1).reshape(-1)
    assert starts.view(np.int32)[good].tolist() == expected[4].reshape(-1)[good].tolist()


@few
@given(
    st.integers(1, 4),
    st.sampled_from([16, 32, 48, 64, 80, 96, 100, 576, 2048]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1]),
)
def test_norms(num_rows, size, seed, kind):
    rng = np.random.default_rng(seed)
    stride = padded(size, 64)
    x = np.zeros((num_rows, stride), F)
    x[:, :size] = rng.normal(rng.normal(), 2, (num_rows, size))
    x[:, size:] = np.nan  # what lies past the row is not read into it
    floats = array(rng.normal(1, 0.3, 2 * size + 64).astype(F))
    out = np.full(x.size, 7, F)
    drivers.call(drivers.rows, x.reshape(-1), size, stride, floats, out, kind, 1e-5)
    weight, bias = floats[:size], floats[size + 64 :][:size]
    rows = np.ascontiguousarray(x[:, :size])
    expected = (
        twins.rms_norm(rows, weight, 1e-5)
        if kind == 0
        else twins.layer_norm(rows, weight, bias, 1e-5)
    )
    out = out.reshape(num_rows, stride)
    assert same(out[:, :size], expected)
    assert (out[:, size : padded(size, 32)] == 0).all()


@few
@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 2**32 - 1), st.integers(2, 5))
def test_activations(num_rows, vectors, seed, kind):
    rng = np.random.default_rng(seed)
    size, stride = vectors * 16, 2 * padded(vectors * 16, 64)
    x = rng.normal(0, 4, (num_rows, stride)).astype(F)
    out = np.zeros(x.size, F)
    drivers.call(drivers.rows, x.reshape(-1), size, stride, array(x), out, kind, 0.0)
    function = (twins.silu, twins.gelu_tanh)[kind % 2]
    expected = function(x[:, :size])
    if kind < 4:
        expected = expected * x[:, stride // 2 :][:, :size]
    assert same(out.reshape(num_rows, stride)[:, :size], expected)


@few
@given(
    st.integers(1, 4),
    st.sampled_from([(16, 16), (64, 64), (64, 40), (80, 32), (96, 96), (128, 128), (256, 64)]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_rotation(num_rows, sizes, interleaved, seed):
    head_dim, dim = sizes
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (num_rows, head_dim)).astype(F)
    tables = rng.uniform(-1, 1, (2, num_rows, dim // 2)).astype(F)
    got = x.copy().reshape(-1)
    drivers.call(drivers.rotate, got, head_dim, tables.reshape(-1), dim, int(interleaved))
    assert same(got.reshape(x.shape), twins.rotate(x, *tables, dim, interleaved))


@few
@given(st.sampled_from([16, 64, 80, 256]), st.integers(0, 2**32 - 1))
def test_stored_values_are_clamped_halves_and_counted(head_dim, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (20, head_dim)).astype(F)
    x[3] *= F(1e5)
    x[4, 0], x[4, 1], x[4, 2] = np.nan, np.inf, -np.inf
    slots = rng.permutation(48)[:20].astype(np.int32)
    keys, values = (np.zeros(48 * head_dim, np.uint16) for _ in range(2))
    sync = new_sync()
    drivers.call(drivers.store, sync, array(x), head_dim, keys, values, slots)
    expected = np.clip(x, -65504, 65504).astype(np.float16)
    stored = values.view(np.float16).reshape(48, head_dim)[slots]
    assert np.array_equal(stored, expected, equal_nan=True)
    by_lane = keys.view(np.float16).reshape(3, head_dim, 16).transpose(0, 2, 1)
    assert np.array_equal(by_lane.reshape(48, head_dim)[slots], expected, equal_nan=True)
    assert sync[CLAMPED] == 2 * int((np.abs(x) > 65504).sum())


# -- matrices -------------------------------------------------------------------------------------

KINDS = sorted((kind for kind in FORMATS if kind in SUPPORTED_TYPES), key=int)
FLOAT_KINDS = [GGMLType.F16, GGMLType.BF16, GGMLType.F32]


def random_tensor(kind: GGMLType, shape: tuple[int, int], seed: int):
    """A weight of any type, its bytes random where we have no quantiser."""
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 0.3, shape).astype(F)
    if kind in FLOAT_KINDS or kind.name in ("Q4_0", "Q4_1", "Q8_0"):
        return tensor("w", values, kind.name)
    elements, size = BLOCK_LAYOUTS[kind]
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // elements, size), dtype=np.uint8)
    result = tensor("w", values[:, :32], "F32")
    half = rng.uniform(0.001, 0.01, (len(blocks), 2)).astype(np.float16).view(np.uint8)
    for at in {
        "Q5_0": (0,), "Q5_1": (0, 2), "IQ4_NL": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2),
        "Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,),
    }[kind.name]:  # fmt: skip
        blocks[:, at : at + 2] = half[:, :2]
    return type(result)("w", kind, shape, blocks.reshape(-1))


def multiply(
    weight, x: np.ndarray, bias: np.ndarray | None = None, *, is_rounded: bool = False
) -> np.ndarray:
    """x [M, columns] times a weight [N, columns], by the kernels."""
    plan = WeightPlan(is_rounded=is_rounded)
    plan.add_matrices([weight], [bias])
    arena, matrices, floats = plan.pack()
    num_rows, room = len(x) + 16, padded(weight.shape[0], 64)
    rows = np.zeros((num_rows, padded(x.shape[1], 32)), F)
    rows[: len(x), : x.shape[1]] = x
    codes, scales, sums, half, starts = twins.quantise(rows)
    codes = np.pad(codes.reshape(num_rows, -1), ((0, 0), (0, 64)))[
        :, : codes_stride.py_func(rows.shape[1])
    ]
    out = aligned(num_rows * room, F)
    panel = aligned(CHUNK * K_CHUNK, F)
    drivers.call(
        drivers.matmul, new_sync(), out, room, array(rows), rows.shape[1], array(codes),
        array(scales), array(sums), array(half), array(starts.view(F)), len(x), arena, floats,
        matrices, panel,
    )  # fmt: skip
    return out.reshape(num_rows, room)[: len(x), : weight.shape[0]]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.integers(1, 33),
    st.integers(1, 150),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
)
def test_products_of_codes(kind, num_rows, outputs, blocks, seed):
    elements = BLOCK_LAYOUTS[kind].elements
    columns = elements * blocks if elements == 256 else 32 * blocks
    weight = random_tensor(kind, (outputs, columns), seed)
    x = np.random.default_rng(seed).normal(0, 2, (num_rows, columns)).astype(F)
    form = FORMATS[kind]
    coded = form.read(blocks_of(kind, weight.data, outputs))
    got = multiply(weight, x)
    assert same(got, twins.matmul_codes(x, coded, form))
    # One row alone has the bits it has among the others.
    row = seed % num_rows
    assert same(multiply(weight, x[row : row + 1])[0], got[row])


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(FLOAT_KINDS),
    st.integers(1, 33),
    st.integers(1, 100),
    st.sampled_from([1, 30, 64, 300]),
    st.integers(0, 2**32 - 1),
)
def test_products_of_floats(kind, num_rows, outputs, columns, seed):
    weight = random_tensor(kind, (outputs, columns), seed)
    x = np.random.default_rng(seed).normal(0, 2, (num_rows, columns)).astype(F)
    bias = np.random.default_rng(seed + 1).normal(0, 1, outputs).astype(F)
    got = multiply(weight, x, bias)
    assert same(got, twins.matmul_floats(x, weight.dequantize()) + bias)
    row = seed % num_rows
    assert same(multiply(weight, x[row : row + 1], bias)[0], got[row])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_codes_are_the_file_s(kind):
    """Packing adds no error: scale * code + minimum is what the file's type defines."""
    weight = random_tensor(kind, (20, 512), 5)
    form = FORMATS[kind]
    coded = form.read(blocks_of(kind, weight.data, 20))
    codes = twins.codes_of(coded, form).astype(F)
    scale = np.repeat(coded.scales.astype(F), form.group, axis=1)
    if coded.minima is None:
        values = scale * (codes - F(form.offset))
    else:
        values = scale * codes + np.repeat(coded.minima.astype(F), form.group, axis=1)
    exact = weight.dequantize()
    assert np.abs(values - exact).max() <= 2e-6 * np.abs(exact).max()
    plan = WeightPlan()
    plan.add_matrices([weight], [None])
    arena, matrices, _ = plan.pack()
    out = np.zeros((20, 512), F)
    tokens = np.arange(20, dtype=np.int32)
    drivers.call(drivers.embed, arena, matrices, tokens, out.reshape(-1), 512)
    assert same(out, values)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(FLOAT_KINDS),
    st.integers(1, 33),
    st.integers(1, 150),
    st.sampled_from([1, 30, 32, 64, 300]),
    st.integers(0, 2**32 - 1),
)
def test_products_of_floats_rounded_to_eight_bits(kind, num_rows, outputs, columns, seed):
    weight = random_tensor(kind, (outputs, columns), seed)
    x = np.random.default_rng(seed).normal(0, 2, (num_rows, columns)).astype(F)
    got = multiply(weight, x, is_rounded=True)
    coded = ROUNDED.read(weight.dequantize())
    assert same(got, twins.matmul_codes(twins.padded_rows(x), coded, ROUNDED))
    row = seed % num_rows
    assert same(multiply(weight, x[row : row + 1], is_rounded=True)[0], got[row])


def back(coded, columns):
    values = coded.codes * np.repeat(coded.scales.astype(F), 32, axis=1)
    return (values + np.repeat(coded.minima.astype(F), 32, axis=1))[:, :columns]


@pytest.mark.parametrize(
    ("draw", "most"), [("normal", 0.0049), ("laplace", 0.0057), ("uniform", 0.0037)]
)
def test_eight_bits_are_close_to_the_floats(draw, most):
    rng = np.random.default_rng(0)
    values = getattr(rng, draw)(-1 if draw == "uniform" else 0, 1, (200, 1000)).astype(F)
    coded = ROUNDED.read(values)
    error = np.linalg.norm(back(coded, 1000) - values) / np.linalg.norm(values)
    assert 0.9 * most < error < most


def test_groups_of_one_value_keep_it_and_what_float16_lacks_is_refused():
    values = np.full((2, 40), 0.5, F)
    values[1] = 0
    assert (back(ROUNDED.read(values), 40) == values).all()
    for wrong in (7e4, -np.inf, np.nan):
        values[0, 3] = wrong
        with pytest.raises(ConfigError, match="up to 65504: load the model without it"):
            ROUNDED.read(values)


# -- attention ------------------------------------------------------------------------------------


def attention_case(seed, tokens, before, group, head_dim, kv_heads=1, window=0, spoil=True):
    rng = np.random.default_rng(seed)
    length = before + tokens
    needed = -(-length // 16)
    num_blocks = needed + 3
    table = rng.permutation(num_blocks)[:needed].astype(np.int32)
    k = rng.normal(0, 1, (length, kv_heads, head_dim)).astype(np.float16)
    v = rng.normal(0, 1, (length, kv_heads, head_dim)).astype(np.float16)
    keys = np.full((kv_heads, num_blocks, head_dim, 16), np.nan, np.float16)
    values = np.full((kv_heads, num_blocks, 16, head_dim), np.nan, np.float16)
    if not spoil:
        keys[:], values[:] = 1, 1
    for t in range(length):
        keys[:, table[t // 16], :, t % 16] = k[t]
        values[:, table[t // 16], t % 16] = v[t]
    if window:
        gone = max(0, before - window + 1) // 16
        table[:gone] = -1
    heads = group * kv_heads
    x = rng.normal(0, 2, (tokens, heads * head_dim)).astype(F)
    return x, k.astype(F), v.astype(F), keys, values, table


def attend(case, before, group, head_dim, kv_heads=1, window=0, most=MAX_ROWS, split=0):
    x, _, _, keys, values, table = case
    out = np.zeros_like(x)
    limit, low = np.zeros(MAX_ROWS + 8, np.int64), np.zeros(MAX_ROWS + 8, np.int64)
    scratch = aligned(1 << 17, F)
    scratch[:] = np.nan
    drivers.call(
        drivers.attend, x.reshape(-1), x.shape[1], group, head_dim, kv_heads,
        keys.view(np.uint16).reshape(-1), values.view(np.uint16).reshape(-1), keys.shape[1], table,
        before, window, head_dim**-0.5, most, out.reshape(-1), scratch, limit, low, split,
    )  # fmt: skip
    return out


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 12),
    st.one_of(st.integers(0, 120), st.integers(400, 1100)),
    st.integers(1, 8),
    st.sampled_from([16, 64, 80, 96, 128, 256]),
    st.sampled_from([0, 0, 1, 17, 100, 600]),
    st.integers(1, MAX_ROWS),
)
def test_attention(seed, tokens, before, group, head_dim, window, most):
    case = attention_case(seed, tokens, before, group, head_dim, window=window)
    got = attend(case, before, group, head_dim, window=window)
    assert np.isfinite(got).all()
    # Any tiles, and segments apart, give the same bits.
    assert same(got, attend(case, before, group, head_dim, window=window, most=most))
    assert same(got, attend(case, before, group, head_dim, window=window, most=most, split=1))
    # What stale slots hold changes nothing.
    clean = attention_case(seed, tokens, before, group, head_dim, window=window, spoil=False)
    assert same(got, attend(clean, before, group, head_dim, window=window))
    x, k, v, *_ = case
    rng = np.random.default_rng(seed)
    for _ in range(3):
        t, h = int(rng.integers(tokens)), int(rng.integers(group))
        end = before + t + 1
        first = max(0, end - window) if window else 0
        part = slice(h * head_dim, (h + 1) * head_dim)
        row = twins.attend_row(x[t, part], k[:end, 0], v[:end, 0], first, head_dim**-0.5)
        assert same(got[t, part], row)
        exact = reference_row(x[t, part], k[first:end, 0], v[first:end, 0])
        assert np.abs(row - exact).max() < 5e-6 * max(1.0, np.abs(exact).max())


def reference_row(q, k, v):
    scores = k.astype(np.float64) @ q.astype(np.float64) * len(q) ** -0.5
    weights = np.exp(scores - scores.max())
    return weights / weights.sum() @ v.astype(np.float64)


def test_a_later_token_s_nan_does_not_reach_an_earlier_query():
    case = attention_case(3, 10, 40, 2, 64, kv_heads=2)
    clean = attend(case, 40, 2, 64, kv_heads=2)
    _, _, _, keys, values, table = case
    keys[:, table[45 // 16], :, 45 % 16] = np.nan
    values[:, table[45 // 16], 45 % 16] = np.nan
    got = attend(case, 40, 2, 64, kv_heads=2)
    assert same(got[:5], clean[:5])
    assert np.isnan(got[5:]).all()
