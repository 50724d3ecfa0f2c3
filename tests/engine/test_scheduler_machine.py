"""The scheduler under random arrivals, aborts and pool sizes: never wrong, never stuck."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)

from engine.scheduler_harness import Harness
from octavo.engine.request import FinishReason


class SchedulerMachine(RuleBasedStateMachine):
    """The harness checks every step; what is left in the end must come to an end."""

    @initialize(
        num_blocks=st.integers(2, 14),
        block_size=st.integers(1, 4),
        seats=st.integers(1, 5),
        budget=st.integers(0, 12),
        static=st.booleans(),
        caching=st.sampled_from([True, True, True, False]),
    )
    def build(
        self,
        num_blocks: int,
        block_size: int,
        seats: int,
        budget: int,
        static: bool,
        caching: bool,
    ) -> None:
        self.harness = Harness(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=seats,
            max_num_batched_tokens=seats + budget,
            static=static,
            enable_prefix_caching=caching,
        )

    @rule(
        data=st.data(),
        max_tokens=st.integers(0, 12),
        priority=st.integers(-1, 1),
        choices=st.sampled_from([1, 1, 1, 2, 4]),
        salt=st.sampled_from(["", "", "s"]),
        scored=st.sampled_from([None, None, None, 0]),
    )
    def arrive(
        self,
        data: st.DataObject,
        max_tokens: int,
        priority: int,
        choices: int,
        salt: str,
        scored: int | None,
    ) -> None:
        longest = self.harness.scheduler.max_model_len - 1
        tokens = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=min(longest, 20)))
        self.harness.add(
            tokens,
            max_tokens=min(max_tokens, self.harness.scheduler.max_model_len - len(tokens)),
            priority=priority,
            n=choices if max_tokens else 1,
            salt=salt,
            prompt_logprobs=scored,
        )

    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.harness.step()

    @precondition(lambda self: self.harness.scheduler.has_requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        live = list(self.harness.scheduler.requests())
        self.harness.scheduler.finish(live[data.draw(st.integers(0, len(live) - 1))], ABORT)
        self.harness.check()

    @precondition(lambda self: self.harness.scheduler.running)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        running = self.harness.scheduler.running
        request = running[data.draw(st.integers(0, len(running) - 1))]
        self.harness.errors[request] = "logits contain NaN"

    @rule()
    def clear(self) -> None:
        self.harness.cache.clear()
        self.harness.check()

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        left = list(self.harness.scheduler.requests())
        # Served one after another, each is computed anew for every token at the very worst.
        bound = sum(r.num_tokens + r.params.max_tokens for r in left for _ in range(r.params.n))
        self.harness.run(max_steps=10 + 10 * bound)


ABORT = FinishReason.ABORT
SchedulerMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
TestSchedulerMachine = SchedulerMachine.TestCase
