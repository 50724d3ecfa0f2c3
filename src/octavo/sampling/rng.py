"""Random numbers as a pure function of place: Philox4x32-10, with no state to keep or to lose.

A request that is preempted, batched with others or resumed elsewhere draws the same numbers, for
they depend on nothing but its seed, the choice, the drawn token's position and the purpose.

Philox4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC11).

The recipe, which every backend must repeat to the bit (words are 32 bits, all unsigned)::

    key      = (seed mod 2^32,  seed div 2^32)
    counter  = (choice,  position mod 2^32,  position div 2^32,  purpose)
    r0 .. r3 = philox4x32_10(counter, key)
    uniform  = ((r0 >> 5) * 2^26 + (r1 >> 6)) * 2^-53      # 27 + 26 bits of float64, in [0, 1)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The purposes: the last word of the counter, so that no two uses share a number.
DRAW = 0  # the draw of a token
SEED = 1  # the seed of a request that brought none

# Multipliers of the rounds and the steps of the key (the golden ratio and sqrt(3) - 1), of SC11.
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
_ROUNDS = 10
_KEY_STEPS = np.arange(_ROUNDS, dtype=np.uint64)[:, None, None] * _WEYL

_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)


def philox4x32(counter: NDArray[np.uint32], key: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return Philox4x32-10 of each row.

    Args:
        counter: ``[rows, 4]`` words.
        key: ``[rows, 2]`` words.

    Returns:
        ``[rows, 4]`` random words.
    """
    # Words are kept in 64-bit lanes, where a product of two of them fits: [2, rows] each.
    c0, c1, c2, c3 = counter.astype(np.uint64).T
    even, odd = np.array((c0, c2)), np.array((c1, c3))
    keys = (key.astype(np.uint64).T + _KEY_STEPS) & _LOW
    for round_key in keys:
        product = (even * _MULTIPLIERS)[::-1]
        even, odd = (product >> _WORD) ^ odd ^ round_key, product & _LOW
    words = np.array((even[0], odd[0], even[1], odd[1]))
    return words.T.astype(np.uint32)


def _words(
    seeds: NDArray[np.uint64],
    choices: NDArray[np.uint32],
    positions: NDArray[np.uint64],
    purpose: int,
) -> NDArray[np.uint32]:
    """Return the four words ``[rows, 4]`` that belong to each (seed, choice, position)."""
    counter = np.empty((len(seeds), 4), dtype=np.uint32)
    counter[:, 0] = choices
    counter[:, 1] = positions & _LOW
    counter[:, 2] = positions >> _WORD
    counter[:, 3] = purpose
    key = np.stack((seeds & _LOW, seeds >> _WORD), axis=1).astype(np.uint32)
    return philox4x32(counter, key)


def uniform(
    seeds: NDArray[np.uint64],
    choices: NDArray[np.uint32],
    positions: NDArray[np.uint64],
    purpose: int,
) -> NDArray[np.float64]:
    """Return one number in [0, 1), a multiple of 2**-53, per row.

    Args:
        seeds: ``[rows]``, the requests' seeds.
        choices: ``[rows]``, which of the request's n answers.
        positions: ``[rows]``, absolute index of the token to draw: prompt tokens count.
        purpose: `DRAW` or another constant of this module.
    """
    words = _words(seeds, choices, positions, purpose).astype(np.uint64)
    bits = ((words[:, 0] >> np.uint64(5)) << np.uint64(26)) | (words[:, 1] >> np.uint64(6))
    return bits.astype(np.float64) * 2.0**-53


def derive_seed(engine_seed: int, arrival: int) -> int:
    """Return the seed, in 0 .. 2**64 - 1, of the ``arrival``-th request, which brought none.

    It is ``r0 + r1 * 2**32`` of the counter (0, arrival, `SEED`) under the key ``engine_seed``
    (taken modulo 2**64): a pure function, so a run can be repeated whole from the engine's seed.
    """
    seeds = np.array([engine_seed % 2**64], dtype=np.uint64)
    positions = np.array([arrival], dtype=np.uint64)
    low, high = _words(seeds, np.zeros(1, dtype=np.uint32), positions, SEED)[0, :2].tolist()
    return int(low) | int(high) << 32
