"""The algorithms as their papers write them: slow lists, one key after another. The oracles.

They share no line, no data structure and no event with the policies they judge.
"""

from __future__ import annotations


def lru(keys, capacity):
    cached, hits = [], 0
    for x in keys:
        if x in cached:
            hits += 1
            cached.remove(x)
        elif len(cached) == capacity:
            cached.pop(0)
        cached.append(x)
    return hits


def fifo(keys, capacity):
    cached, hits = [], 0
    for x in keys:
        if x in cached:
            hits += 1
            continue
        if len(cached) == capacity:
            cached.pop(0)
        cached.append(x)
    return hits


def lfu(keys, capacity):
    cached, hits = {}, 0  # key -> (count, last reference)
    for now, x in enumerate(keys):
        if x in cached:
            hits += 1
        elif len(cached) == capacity:
            del cached[min(cached, key=cached.__getitem__)]
        cached[x] = (cached.get(x, (0, 0))[0] + 1, now)
    return hits


def slru(keys, capacity):
    probation, protected, hits = [], [], 0
    for x in keys:
        if x in probation or x in protected:
            hits += 1
            (probation if x in probation else protected).remove(x)
            protected.append(x)
            if len(protected) > int(0.8 * capacity):
                probation.append(protected.pop(0))
            continue
        if len(probation) + len(protected) == capacity:
            (probation or protected).pop(0)
        probation.append(x)
    return hits


def s3fifo(keys, capacity):
    """Algorithm 1 of the paper, line by line."""
    small, main, ghosts, count, hits = [], [], [], {}, 0
    max_small = max(1, int(0.1 * capacity))
    for x in keys:
        if x in count:
            hits += 1
            count[x] = min(count[x] + 1, 3)
            continue
        to_main = x in ghosts
        if to_main:
            ghosts.remove(x)
        while len(small) + len(main) >= capacity:
            if len(main) > capacity - max_small or not small:
                tail = main.pop(0)
                if count[tail] > 0:
                    count[tail] -= 1
                    main.append(tail)
                else:
                    del count[tail]
                continue
            evicted = False
            while small and not evicted:
                tail = small.pop(0)
                if count[tail] > 1:
                    count[tail] = 0
                    main.append(tail)
                else:
                    del count[tail]
                    evicted = True
                    ghosts.append(tail)
                    del ghosts[: -(capacity - max_small) or len(ghosts)]
        (main if to_main else small).append(x)
        count[x] = 0
    return hits


def arc(keys, c):
    """Figure 4 of the paper, line by line."""
    t1, t2, b1, b2, p, hits = [], [], [], [], 0.0, 0

    def replace(x):
        if t1 and (len(t1) > p or (x in b2 and len(t1) == p)):
            b1.append(t1.pop(0))
        else:
            b2.append(t2.pop(0))

    for x in keys:
        if x in t1 or x in t2:  # case I
            hits += 1
            (t1 if x in t1 else t2).remove(x)
        elif x in b1:  # case II
            p = min(p + max(len(b2) / len(b1), 1), c)
            replace(x)
            b1.remove(x)
        elif x in b2:  # case III
            p = max(p - max(len(b1) / len(b2), 1), 0)
            replace(x)
            b2.remove(x)
        else:  # case IV
            if len(t1) + len(b1) == c:
                if len(t1) < c:
                    b1.pop(0)
                    replace(x)
                else:
                    t1.pop(0)
            elif len(t1) + len(t2) + len(b1) + len(b2) >= c:
                if len(t1) + len(t2) + len(b1) + len(b2) == 2 * c:
                    b2.pop(0)
                replace(x)
            t1.append(x)
            continue
        t2.append(x)
    return hits


def optimal(keys, capacity):
    cached, hits = set(), 0
    for now, x in enumerate(keys):
        if x in cached:
            hits += 1
            continue
        if len(cached) == capacity:
            rest = keys[now + 1 :]
            cached.remove(max(cached, key=lambda y: rest.index(y) if y in rest else len(keys) + y))
        cached.add(x)
    return hits
