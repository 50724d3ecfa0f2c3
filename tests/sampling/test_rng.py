"""Philox by its published vectors and by a plain-Python twin; the recipe for a uniform number."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.sampling import rng

WORD = st.integers(0, 2**32 - 1)
LONG = st.integers(0, 2**64 - 1)


def twin(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
    """Philox4x32-10 written from the paper, with Python's integers."""
    c, k = counter, key
    for _ in range(10):
        high_0, low_0 = divmod(c[0] * 0xD2511F53, 2**32)
        high_1, low_1 = divmod(c[2] * 0xCD9E8D57, 2**32)
        c = (high_1 ^ c[1] ^ k[0], low_1, high_0 ^ c[3] ^ k[1], low_0)
        k = ((k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32)
    return c


def twin_uniform(seed: int, choice: int, position: int, purpose: int) -> float:
    words = twin((choice, position % 2**32, position >> 32, purpose), (seed % 2**32, seed >> 32))
    return float(((words[0] >> 5) * 2**26 + (words[1] >> 6)) / 2**53)


def uniform(seed: int, choice: int, position: int, purpose: int = rng.DRAW) -> float:
    return rng.uniform(seed, choice, position, purpose)


# Of Random123's file kat_vectors: counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS)
def test_known_answers(counter: str, key: str, result: str):
    c, k, r = ([int(word, 16) for word in words.split()] for words in (counter, key, result))
    assert list(rng.philox4x32(tuple(c), tuple(k))) == r  # type: ignore[arg-type]
    assert list(twin(tuple(c), tuple(k))) == r  # type: ignore[arg-type]


@given(LONG, WORD, LONG, WORD)
def test_uniform_equals_the_twin(seed: int, choice: int, position: int, purpose: int):
    number = rng.uniform(seed, choice, position, purpose)
    assert number == twin_uniform(seed, choice, position, purpose)
    assert 0.0 <= number < 1.0


def test_every_part_of_the_place_matters():
    base = (1, 0, 7, rng.DRAW)
    others = [(2, 0, 7, rng.DRAW), (1 << 32, 0, 7, 0), (1, 1, 7, 0), (1, 0, 8, 0), (1, 0, 7, 1)]
    others.append((1, 0, 7 << 32, rng.DRAW))
    assert len({uniform(*place) for place in [base, *others]}) == 7


def test_the_largest_number_is_below_one():
    words = (2**32 - 1,) * 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rng, "philox4x32", lambda counter, key: words)
        assert uniform(0, 0, 0) == 1.0 - 2.0**-53


@pytest.mark.parametrize("varied", ["seeds", "choices", "positions"])
def test_numbers_look_uniform_and_independent(varied: str):
    count = 100_000
    place = {"seeds": (1, 0, 0), "choices": (0, 1, 0), "positions": (0, 0, 1)}[varied]
    numbers = np.array(
        [
            rng.uniform(42 + place[0] * i, place[1] * i, 9 + place[2] * i, rng.DRAW)
            for i in range(count)
        ]
    )
    # 20 bins: chi-squared has 19 degrees of freedom, and exceeds 60 once in about 200 000 runs.
    histogram = np.bincount((numbers * 20).astype(int), minlength=20)
    assert ((histogram - count / 20) ** 2 / (count / 20)).sum() < 60
    neighbours = np.corrcoef(numbers[:-1], numbers[1:])[0, 1]
    assert abs(neighbours) < 5 / np.sqrt(count)
    assert len(np.unique(numbers)) == count


def test_derived_seeds_are_the_twins_words():
    for engine_seed, arrival in itertools.product([0, 1, 2**64 - 1], [0, 1, 2**40]):
        key = (engine_seed % 2**32, engine_seed >> 32)
        words = twin((0, arrival % 2**32, arrival >> 32, rng.SEED), key)
        assert rng.derive_seed(engine_seed, arrival) == words[0] + words[1] * 2**32


def test_derived_seeds_differ_and_take_any_engine_seed():
    seeds = [rng.derive_seed(engine, arrival) for engine in (0, -1) for arrival in range(1000)]
    assert len(set(seeds)) == 2000
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert rng.derive_seed(-1, 3) == rng.derive_seed(2**64 - 1, 3)
