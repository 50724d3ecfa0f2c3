"""The whole cache under random use, beside a model of what it must hold, to the order of eviction.

The model knows prefixes and counts only: no block ids, no tree, no hashes.
"""

from __future__ import annotations

from collections import Counter
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cache.cache_driver import CacheDriver, make_request
from octavo.cache.keys import block_key, root_key

SIZE = 2
NUM_BLOCKS = 9
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


class Model:
    """Which prefixes are cached, who holds how many of them, and in what order they will die."""

    def __init__(self) -> None:
        self.holders: Counter[tuple] = Counter()  # cached prefix -> requests that hold it
        self.idle: list[tuple] = []  # cached, held by nobody; the next to die first
        self.own: Counter[int] = Counter()  # blocks outside the cache -> requests that hold them
        self.tables: dict[object, list] = {}  # a prefix (shared), or the number of an own block
        self._numbers = count()

    @property
    def num_free(self) -> int:
        return NUM_BLOCKS - len(self.holders) - len(self.own)

    def prefix(self, request, num_blocks: int) -> tuple:
        tokens = [*request.prompt_token_ids, *request.output_token_ids]
        return (request.cache_salt, *tokens[: num_blocks * SIZE])

    def matched(self, request) -> int:
        if request.skips_prefix_reads:
            return 0
        length = 0
        while (length + 1) * SIZE <= request.num_tokens and (
            self.prefix(request, length + 1) in self.holders
        ):
            length += 1
        return length

    def make_room(self, needed: int, spared: set[tuple] = frozenset()) -> bool:
        dying = [prefix for prefix in self.idle if prefix not in spared]
        shortage = needed - self.num_free
        if shortage > len(dying):
            return False
        for prefix in dying[: max(0, shortage)]:
            self.idle.remove(prefix)
            del self.holders[prefix]
        return True

    def admit(self, request, num_tokens: int) -> bool:
        """``num_tokens`` is what the table must have room for."""
        matched = [self.prefix(request, i + 1) for i in range(self.matched(request))]
        needed = -(-num_tokens // SIZE) - len(matched)
        if not self.make_room(needed, set(matched)):
            return False
        for prefix in matched:
            self.hold(prefix)
        self.tables[request] = [*matched, *self.fresh(needed)]
        return True

    def grow(self, request, num_tokens: int) -> bool:
        table = self.tables[request]
        tail = request.num_computed_tokens // SIZE
        copies = tail < len(table) and isinstance(table[tail], int) and self.own[table[tail]] > 1
        needed = -(-num_tokens // SIZE) - len(table)
        if not self.make_room(needed + copies):
            return False
        if copies:
            self.own[table[tail]] -= 1
            table[tail] = self.fresh(1)[0]
        table += self.fresh(needed)
        return True

    def publish(self, request) -> None:
        table = self.tables[request]
        for i in range(request.num_computed_tokens // SIZE):
            if isinstance(table[i], int):
                del self.own[table[i]]
                table[i] = self.prefix(request, i + 1)
                self.hold(table[i])

    def hold(self, prefix: tuple) -> None:
        if prefix in self.idle:
            self.idle.remove(prefix)
        self.holders[prefix] += 1

    def fresh(self, number: int) -> list[int]:
        blocks = [next(self._numbers) for _ in range(number)]
        self.own.update(blocks)
        return blocks

    def fork(self, parent, child) -> None:
        self.tables[child] = list(self.tables[parent])
        for entry in self.tables[child]:
            (self.own if isinstance(entry, int) else self.holders)[entry] += 1

    def free(self, request) -> None:
        for entry in reversed(self.tables.pop(request)):
            if isinstance(entry, int):
                self.own[entry] -= 1
                if not self.own[entry]:
                    del self.own[entry]
            else:
                self.holders[entry] -= 1
                if not self.holders[entry]:
                    self.idle.append(entry)


class CacheMachine(RuleBasedStateMachine):
    """Requests come, are computed in chunks, fork, are preempted, resume and end, at random."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = CacheDriver(NUM_BLOCKS, SIZE)
        self.cache = self.driver.cache
        self.model = Model()
        self.preempted: list = []
        self.names = count()

    def any_request(self, data: st.DataObject):
        index = data.draw(st.integers(0, len(self.driver.requests) - 1))
        return self.driver.requests[index]

    def admit(self, request, chunk: int) -> bool:
        match = self.cache.match_prefix(request)
        assert len(match.nodes) == self.model.matched(request)
        limit = request.num_tokens - match.num_tokens
        assert limit >= 1
        chunk = min(chunk, limit)
        admitted = self.driver.admit(request, chunk)
        assert admitted == self.model.admit(request, match.num_tokens + chunk)
        if admitted:
            self.compute(request, chunk)
        return admitted

    def compute(self, request, chunk: int) -> None:
        self.driver.compute(request, chunk)
        self.model.publish(request)

    @rule(tokens=TOKENS, salt=st.sampled_from(["", "", "", "s"]), chunk=st.integers(1, 9))
    def arrive(self, tokens: list[int], salt: str, chunk: int) -> None:
        self.admit(make_request(f"r{next(self.names)}", tokens, salt=salt), chunk)

    @rule(tokens=TOKENS, chunk=st.integers(1, 9))
    def arrive_scored(self, tokens: list[int], chunk: int) -> None:
        """A request that must compute what is cached already, and then holds the cached blocks."""
        self.admit(make_request(f"r{next(self.names)}", tokens, prompt_logprobs=0), chunk)

    @precondition(lambda self: self.driver.requests)
    @rule(data=st.data(), chunk=st.integers(1, 5), token=st.integers(0, 1))
    def advance(self, data: st.DataObject, chunk: int, token: int) -> None:
        request = self.any_request(data)
        if not request.num_uncomputed_tokens:
            request.output_token_ids.append(token)
        chunk = min(chunk, request.num_uncomputed_tokens)
        num_tokens = request.num_computed_tokens + chunk
        grown = self.driver.grow(request, chunk)
        assert grown == self.model.grow(request, num_tokens)
        if grown:
            self.compute(request, chunk)

    @precondition(lambda self: any(not r.num_uncomputed_tokens for r in self.driver.requests))
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        ready = [r for r in self.driver.requests if not r.num_uncomputed_tokens]
        parent = data.draw(st.sampled_from(ready))
        child = parent.new_choice(1)
        child.output_token_ids += parent.output_token_ids
        self.cache.fork(parent, child)
        child.num_computed_tokens = parent.num_computed_tokens
        self.driver.requests.append(child)
        self.model.fork(parent, child)

    @precondition(lambda self: self.driver.requests)
    @rule(data=st.data(), ends=st.booleans())
    def leave(self, data: st.DataObject, ends: bool) -> None:
        request = self.any_request(data)
        self.driver.free(request)
        self.model.free(request)
        if not ends:
            request.num_computed_tokens = 0
            self.preempted.append(request)

    @precondition(lambda self: self.preempted)
    @rule(chunk=st.integers(1, 9))
    def resume(self, chunk: int) -> None:
        request = self.preempted.pop(0)
        cached_at_first = request.num_cached_tokens
        if not self.admit(request, chunk):
            self.preempted.append(request)
        assert request.num_cached_tokens == cached_at_first

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        for prefix in self.model.idle:
            del self.model.holders[prefix]
        self.model.idle.clear()

    @invariant()
    def agrees(self) -> None:
        self.driver.check()
        model, cache = self.model, self.cache
        assert cache.pool.num_free == model.num_free
        assert list(cache.policy._idle) == [chain(prefix) for prefix in model.idle]
        assert {node.key for node in cache.tree} == {chain(prefix) for prefix in model.holders}
        for request in self.driver.requests:
            entries = model.tables[request]
            shared = sum(not isinstance(entry, int) for entry in entries)
            assert len(request.block_table) == len(entries)
            assert request.num_published_blocks == shared


def chain(prefix: tuple) -> bytes:
    """Return the key of a prefix, straight from the recipe."""
    salt, *tokens = prefix
    key = root_key(model=b"m", salt=salt, block_size=SIZE)
    for start in range(0, len(tokens), SIZE):
        key = block_key(key, tokens[start : start + SIZE])
    return key


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCacheMachine = CacheMachine.TestCase
