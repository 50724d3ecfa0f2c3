"""A small engine that only moves keys about: random prompts, in random order, under one policy.

It does to a policy all that the real one does (admit, publish in pieces, decode, finish, abort,
preempt, resume) and watches every decision. Nothing of the production cache is in it.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from octavo.cache.eviction import EvictionPolicy


class Key:
    """A number with a hash of its own: no decision may depend on the hash."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: int) -> None:
        self.value = value
        self._hash = hash((value, "salted"))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.value == other.value

    def __int__(self) -> int:
        return self.value


@dataclass(eq=False)
class Job:
    """A prompt on its way. Its first ``published`` keys are cached and held by it."""

    keys: list
    published: int = 0
    missed: int = 0
    """How many leading keys the policy was told of."""
    num_blocks: int = 0
    resumed: bool = False


@dataclass
class FakeEngine:
    """``capacity`` blocks, random jobs of one ``seed``."""

    policy_type: type[EvictionPolicy]
    capacity: int
    seed: int
    make_key: Callable[[int], Hashable] = int
    max_length: int = 10
    branches: int = 3
    num_keys_told: int = 0
    """Keys told to the policy so far, over all events."""
    victims: list[int] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    preempted: list[Job] = field(default_factory=list)
    references: dict = field(default_factory=dict)
    """How many jobs hold each cached key."""
    children: dict = field(default_factory=dict)
    parents: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.policy = self.policy_type(self.capacity, self)
        self.random = random.Random(self.seed)
        self.num_free = self.capacity
        self.max_running = 1 + self.capacity // self.max_length
        self.names: dict[int, Hashable] = {}

    # -- what a policy may ask ----------------------------------------------------------------

    def is_leaf(self, key):
        return self.children[key] == 0

    def num_leaves(self, keys):
        gone = Counter()
        for i, key in enumerate(keys):
            if self.children[key] != gone[key]:
                return i
            gone[self.parents[key]] += 1
        return len(keys)

    def parent(self, key):
        return self.parents[key]

    def bury(self, keys):
        for key in keys:
            self.bury_one(key)

    def bury_one(self, key):
        assert self.references.pop(key) == 0, f"{key} is held and was evicted"
        assert self.children.pop(key) == 0, f"{key} was evicted before its children"
        self.num_free += 1
        self.victims.append(int(key))
        parent = self.parents.pop(key)
        if parent is not None:
            self.children[parent] -= 1

    # -- one random thing ---------------------------------------------------------------------

    def step(self) -> None:
        choice = self.random.random()
        if not self.running or (choice < 0.35 and len(self.running) < self.max_running):
            self.admit(self.next_job())
            return
        job = self.random.choice(self.running)
        if choice < 0.6:
            self.publish(job, self.random.randint(job.published, len(job.keys)))
        elif choice < 0.7:
            self.decode(job)
        elif choice < 0.85:
            self.publish(job, len(job.keys))
            self.release(job)
        else:
            self.release(job)
            if choice > 0.93:
                job.resumed = True
                self.preempted.append(job)

    def next_job(self) -> Job:
        if self.preempted and self.random.random() < 0.5:
            return self.preempted.pop()
        return Job(self.prompt())

    def prompt(self) -> list[Hashable]:
        keys, value = [], 0
        for _ in range(self.random.randint(1, self.max_length)):
            # low branches are popular, deep places are seldom seen twice
            branch = int(self.branches * self.random.random() ** 2)
            value = value * (self.branches + 1) + branch + 1
            keys.append(self.key(value))
        return keys

    def key(self, value: int) -> Hashable:
        return self.names.setdefault(value, self.make_key(value))

    # -- what an engine does ------------------------------------------------------------------

    def admit(self, job: Job) -> None:
        num_hits = 0
        while num_hits < len(job.keys) and job.keys[num_hits] in self.references:
            num_hits += 1
        hits, missed = job.keys[:num_hits], job.keys[num_hits:]
        held_back = sum(1 for key in hits if self.references[key] == 0)
        shortage = len(missed) - self.num_free
        if shortage > self.policy.num_evictable - held_back:
            return  # no room: dropped
        for key in hits:
            self.references[key] += 1
        if hits:
            self.policy.on_hit(hits, promote=not job.resumed)
        if missed and not job.resumed:
            self.policy.on_miss(missed)
        if shortage > 0:
            self.evict(shortage, missed[0])
        self.num_free -= len(missed)
        job.published, job.missed, job.num_blocks = num_hits, len(job.keys), len(job.keys)
        self.running.append(job)
        self.num_keys_told += len(job.keys)

    def evict(self, count: int, incoming: Hashable | None) -> None:
        before = self.policy.num_evictable
        victims = self.policy.evict(count, incoming)
        assert victims is not None
        assert len(set(victims)) == count
        assert self.policy.num_evictable == before - count
        self.num_keys_told += count

    def publish(self, job: Job, stop: int) -> None:
        run: list[Hashable] = []
        parent = run_parent = job.keys[job.published - 1] if job.published else None
        for key in job.keys[job.published : stop]:
            if key in self.references:  # somebody else was quicker
                self.insert(run, run_parent)
                run, run_parent = [], key
                self.references[key] += 1
                self.policy.on_hit((key,), promote=False)
                self.num_free += 1
            else:
                self.references[key] = 1
                self.children[key] = 0
                self.parents[key] = parent
                if parent is not None:
                    self.children[parent] += 1
                run.append(key)
            parent = key
        self.insert(run, run_parent)
        self.num_keys_told += stop - job.published
        job.published = stop

    def insert(self, run: list[Hashable], parent: Hashable | None) -> None:
        if run:
            self.policy.on_insert(run, parent)

    def decode(self, job: Job) -> None:
        """Take one more block, whose key nobody knew before."""
        if self.num_free == 0:
            if self.policy.num_evictable == 0:
                return
            self.evict(1, None)
        self.num_free -= 1
        value = int(job.keys[-1]) * (self.branches + 1) + self.random.randint(1, self.branches)
        job.keys.append(self.key(value))
        job.num_blocks += 1

    def release(self, job: Job) -> None:
        self.running.remove(job)
        self.num_free += job.num_blocks - job.published
        idle = []
        for key in reversed(job.keys[: job.published]):
            self.references[key] -= 1
            if self.references[key] == 0:
                idle.append(key)
        if idle:
            self.policy.on_evictable(idle)
        if job.missed > job.published:
            self.policy.on_remove(job.keys[job.published : job.missed])
        self.num_keys_told += len(job.keys)
        job.published = job.missed = job.num_blocks = 0

    # -- the accounts -------------------------------------------------------------------------

    def check(self) -> None:
        num_idle = sum(1 for count in self.references.values() if count == 0)
        assert self.policy.num_evictable == num_idle
        own = sum(job.num_blocks - job.published for job in self.running)
        assert self.num_free + len(self.references) + own == self.capacity
        for name, value in vars(self.policy).items():
            if hasattr(value, "__len__"):
                assert len(value) <= 2 * self.capacity, f"{name} grows without bound"
        lists = self.policy.lists()
        assert min(lists.values()) >= 0, lists
        assert sum(lists.values()) <= 2 * self.capacity, lists
