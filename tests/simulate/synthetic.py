"""Seeded traces with the shapes that tell policies apart. The same on every machine."""

from __future__ import annotations

import random


def zipf(seed=1, num_keys=400, length=6000, skew=0.9):
    """Popular keys stay popular."""
    weights = [1 / (rank + 1) ** skew for rank in range(num_keys)]
    return random.Random(seed).choices(range(num_keys), weights, k=length)


def scans(seed=2, length=6000):
    """A small working set, again and again interrupted by keys that come once."""
    rng, keys, fresh = random.Random(seed), [], 10_000
    while len(keys) < length:
        keys.extend(rng.randrange(60) for _ in range(150))
        keys.extend(range(fresh, fresh + 100))
        fresh += 100
    return keys[:length]


def loop(num_keys=120, length=6000):
    """One cycle that is a little longer than the cache."""
    return [i % num_keys for i in range(length)]


def phases(seed=3, length=6000):
    """The popular keys change from time to time."""
    rng = random.Random(seed)
    return [int(rng.expovariate(0.03)) + 80 * (i // 1000) for i in range(length)]


TRACES = {"zipf": zipf, "scans": scans, "loop": loop, "phases": phases}
