"""A user's eviction policy that fails in a running engine is told as its own fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from octavo import LLM, SamplingParams
from octavo.cache.policies.lru import LRU
from octavo.errors import ConfigError, PolicyError

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path


class Loses(LRU):
    """Fails when it is asked for a victim."""

    name = "loses"

    def victims(self, count: int, incoming: Hashable | None) -> list[Hashable]:
        raise KeyError("lost")


class NamesHeld(LRU):
    """Names a block that a running request holds, the last that was cached."""

    name = "names-held"

    def on_insert(self, keys, parent) -> None:
        self.last = keys[-1]

    def victims(self, count: int, incoming: Hashable | None) -> list[Hashable]:
        return [self.last]


def engine(path: Path, policy: type[LRU], **more: object) -> LLM:
    kind = f"{__name__}:{policy.__name__}"
    sizes = {"num_kv_blocks": 6, "block_size": 4, "max_model_len": 24, **more}
    return LLM(str(path), backend="reference", eviction_policy=kind, **sizes)


PROMPTS = [{"prompt_token_ids": [5 + i] * 12} for i in range(4)]
PARAMS = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)


@pytest.mark.parametrize(
    ("policy", "reason"), [(Loses, "failed with KeyError: 'lost'"), (NamesHeld, "may not die")]
)
def test_it_is_a_policy_error_and_the_engine_is_left_empty(tiny_model_path, policy, reason):
    llm = engine(tiny_model_path, policy)
    for _ in range(2):  # the second call is told the same
        with pytest.raises(PolicyError, match=rf"the policy '{policy.name}' of .*{reason}"):
            llm.generate(PROMPTS, PARAMS)
        assert not llm.core.has_requests
        assert llm.core.cache.pool.ref_counts == [0] * 6


def test_one_that_is_no_policy_is_refused_before_the_model_is_loaded():
    with pytest.raises(ConfigError, match="not a class derived from"):
        LLM("/no/such/model", eviction_policy=f"{__name__}:SamplingParams")
