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

# The purposes: the last word of the counter, so that no two uses share a number.
DRAW = 0  # the draw of a token
SEED = 1  # the seed of a request that brought none

# Multipliers of the rounds and the steps of the key (the golden ratio and sqrt(3) - 1), of SC11.
_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_LOW = 0xFFFFFFFF

Words = tuple[int, int, int, int]


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Return the four random words of a counter under a key.

    In Python's integers: a few microseconds, where an array of one row costs ten times that.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0, product_1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0, c1 = (product_1 >> 32) ^ c1 ^ k0, product_1 & _LOW
        c2, c3 = (product_0 >> 32) ^ c3 ^ k1, product_0 & _LOW
        k0, k1 = (k0 + _WEYL_0) & _LOW, (k1 + _WEYL_1) & _LOW
    return c0, c1, c2, c3


def _words(seed: int, choice: int, position: int, purpose: int) -> Words:
    counter = (choice, position & _LOW, position >> 32, purpose)
    return philox4x32(counter, (seed & _LOW, seed >> 32))


def uniform(seed: int, choice: int, position: int, purpose: int) -> float:
    """Return a number in [0, 1), a multiple of 2**-53.

    Args:
        seed: the request's, in 0 .. 2**64 - 1.
        choice: which of the request's n answers, below 2**32.
        position: absolute index of the token to draw: prompt tokens count. Below 2**64.
        purpose: `DRAW` or another constant of this module.
    """
    r0, r1, _, _ = _words(seed, choice, position, purpose)
    return ((r0 >> 5) << 26 | r1 >> 6) * 2.0**-53


def derive_seed(engine_seed: int, arrival: int) -> int:
    """Return the seed, in 0 .. 2**64 - 1, of the ``arrival``-th request, which brought none.

    It is ``r0 + r1 * 2**32`` of the counter (0, arrival, `SEED`) under the key ``engine_seed``
    (taken modulo 2**64): a pure function, so a run can be repeated whole from the engine's seed.
    """
    low, high, _, _ = _words(engine_seed % 2**64, 0, arrival, SEED)
    return low | high << 32
