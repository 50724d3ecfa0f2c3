"""The core on tiny models: a request's answer does not depend on what happens around it."""

from __future__ import annotations

import numpy as np
import pytest

from backends.random_model import VARIANTS, random_spec
from engine.core_harness import answer, assert_same, make_core, numbers, run, step
from octavo.engine.request import FinishReason
from octavo.errors import ContextLengthError, InvalidRequestError
from octavo.sampling.params import SamplingParams

GREEDY = {"temperature": 0.0, "logprobs": 20}


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 61, length).tolist()


# -- the same answer, whatever happens around it ----------------------------------------------


@pytest.mark.parametrize("block_size", [1, 7, 16])
@pytest.mark.parametrize("spec", VARIANTS.values(), ids=VARIANTS.keys())
def test_alone_batched_chunked_cached_and_preempted_agree(spec, block_size: int) -> None:
    tokens = prompt(1, 37)
    params = SamplingParams(max_tokens=8, **GREEDY)
    size = {"block_size": block_size, "num_blocks": 400 // block_size}
    alone = answer(make_core(spec, caching=False, **size), tokens, max_tokens=8, **GREEDY)
    assert alone.num_output_tokens == 8

    core = make_core(spec, budget=4, max_num_seqs=2, **size)
    chunked = core.add_request("chunked", tokens, params)
    run(core)
    assert_same(chunked, alone)

    cached = core.add_request("cached", tokens, params)
    run(core)
    assert cached.num_cached_tokens == 37 - 37 % block_size - (37 % block_size == 0)
    assert_same(cached, alone)

    core = make_core(spec, budget=24, **size)
    for i in range(3):
        core.add_request(f"other{i}", prompt(10 + i, 5 + 9 * i), params)
    batched = core.add_request("batched", tokens, params)
    forked = core.add_request("forked", tokens, SamplingParams(max_tokens=8, n=2, **GREEDY))
    choices = run(core)
    for request in (batched, forked, choices["forked", 1]):
        assert_same(request, alone)

    core = make_core(spec, budget=16, **size)
    preempted = core.add_request("preempted", tokens, params)
    other = core.add_request("other", prompt(20, 9), params)

    def disturb(number: int) -> None:
        for request in (preempted, other):
            if number % 3 == 1 and request in core.scheduler.running:
                core.scheduler._preempt(request)

    run(core, disturb)
    assert preempted.num_preemptions >= 3
    assert_same(preempted, alone)


@pytest.mark.parametrize("spec", [VARIANTS["group 3, half"], VARIANTS["q/k norm"]])
def test_a_scored_prompt_is_the_same_alone_batched_chunked_and_preempted(spec) -> None:
    tokens = prompt(2, 90)
    asked = {"max_tokens": 3, "prompt_logprobs": 20, **GREEDY}
    alone = answer(make_core(spec, num_blocks=16), tokens, **asked)
    assert len(alone.prompt_logprobs) == 90
    assert alone.prompt_logprobs[0] is None
    assert [entry.token_id for entry in alone.prompt_logprobs[1:]] == tokens[1:]
    core = make_core(spec, budget=11, max_num_seqs=4)
    core.add_request("other", tokens[:40], SamplingParams(max_tokens=20, **GREEDY))
    scored = core.add_request("scored", tokens, SamplingParams(**asked))

    def disturb(number: int) -> None:
        if number in (3, 7, 20) and scored in core.scheduler.running:
            core.scheduler._preempt(scored)

    run(core, disturb)
    assert scored.num_preemptions >= 2
    assert_same(scored, alone)


def test_scoring_reads_no_prefix_and_says_what_decoding_says() -> None:
    core = make_core()
    tokens = prompt(3, 40)
    written = answer(core, tokens, max_tokens=12, **GREEDY)
    whole = tokens + written.output_token_ids
    scored = answer(core, whole, max_tokens=0, prompt_logprobs=20)
    assert scored.num_cached_tokens == 0
    assert (scored.finish_reason, scored.output_token_ids) == (FinishReason.LENGTH, [])
    taught = np.array([[e.logprob, *e.top_logprobs] for e in scored.prompt_logprobs[40:]])
    assert np.abs(taught - numbers(written)).max() < 1e-4
    # What it computed anew was published, or replaced by what was there.
    assert answer(core, whole, max_tokens=1).num_cached_tokens == 48


@pytest.mark.parametrize("length", [1, 2])
def test_the_shortest_prompts_are_scored_too(length: int) -> None:
    scored = answer(make_core(), prompt(4, length), max_tokens=2, prompt_logprobs=1, **GREEDY)
    assert [entry is None for entry in scored.prompt_logprobs] == [True, False][:length]
    assert scored.num_output_tokens == 2


def test_max_tokens_0_without_logprobs_computes_the_prompt_and_ends() -> None:
    core = make_core()
    request = answer(core, prompt(4, 20), max_tokens=0)
    assert (request.finish_reason, request.output_token_ids) == (FinishReason.LENGTH, [])
    assert answer(core, prompt(4, 20), max_tokens=1).num_cached_tokens == 16


@pytest.mark.parametrize("num_full_blocks", [1, 3])
def test_a_fully_cached_prompt_computes_one_token_and_writes_nothing(num_full_blocks: int) -> None:
    """nano-vllm#144, vllm#11186."""
    core = make_core(num_blocks=8)
    tokens = prompt(5, 16 * num_full_blocks)
    first = answer(core, tokens, max_tokens=1, **GREEDY)
    keys, values = core.backend.keys.copy(), core.backend.values.copy()
    cached = {node.key: node.block_id for node in core.cache.tree}
    again = core.add_request("again", tokens, SamplingParams(max_tokens=1, **GREEDY))
    step(core)
    assert core.num_steps == 2
    assert again.num_cached_tokens == len(tokens) - 1
    assert_same(again, first)
    assert {node.key: node.block_id for node in core.cache.tree} == cached
    assert np.array_equal(core.backend.keys, keys)
    assert np.array_equal(core.backend.values, values)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_many_preemptions_change_no_token(temperature: float) -> None:
    """vllm#16832, nano-vllm#144: lost or repeated tokens; sampled ones drawn anew."""
    asked = {"max_tokens": 30, "temperature": temperature, "seed": 7}
    prompts = [prompt(30 + i, 20) for i in range(4)]
    alone = [answer(make_core(), tokens, **asked).output_token_ids for tokens in prompts]
    core = make_core(block_size=4, num_blocks=19, max_model_len=52, budget=9, max_num_seqs=4)
    requests = [
        core.add_request(str(i), tokens, SamplingParams(**asked))
        for i, tokens in enumerate(prompts)
    ]
    run(core)
    assert core.scheduler.num_preemptions >= 3  # a pool for one and a half
    assert [request.output_token_ids for request in requests] == alone
    core = make_core()
    request = core.add_request("hard", prompts[0], SamplingParams(**asked))
    run(core, lambda _: request in core.scheduler.running and core.scheduler._preempt(request))
    assert request.num_preemptions == 29
    assert request.output_token_ids == alone[0]


def test_sixteen_marked_prompts_get_their_own_answers() -> None:
    """llama.cpp#27148: some cached, of unequal lengths, in one batch."""
    shared = prompt(6, 33)
    prompts = [[*shared[: 3 * i], 40 + i, *prompt(50 + i, i % 5)] for i in range(16)]
    asked = {"max_tokens": 10, **GREEDY}
    alone = [answer(make_core(), tokens, **asked) for tokens in prompts]
    core = make_core(block_size=4, max_num_seqs=16, budget=40)
    answer(core, prompts[9], **asked)
    answer(core, shared, **asked)
    requests = [
        core.add_request(str(i), tokens, SamplingParams(**asked))
        for i, tokens in enumerate(prompts)
    ]
    run(core)
    for request, reference in zip(requests, alone, strict=True):
        assert_same(request, reference)
    assert sum(request.num_cached_tokens > 0 for request in requests) >= 8


# -- choices and seeds ------------------------------------------------------------------------


def test_choices_differ_and_can_be_repeated_whatever_the_seats() -> None:
    asked = SamplingParams(n=4, max_tokens=12, temperature=1.0, seed=11)

    def texts(**settings: int) -> list[list[int]]:
        core = make_core(**settings)
        core.add_request("r", prompt(8, 21), asked)
        choices = run(core)
        return [choices["r", i].output_token_ids for i in range(4)]

    expected = texts()
    assert len({tuple(text) for text in expected}) == 4
    assert len({text[0] for text in expected}) > 1  # distinct from the very first token
    assert texts() == expected
    assert texts(max_num_seqs=1) == expected
    assert texts(num_blocks=3, max_num_seqs=4) == expected
    core = make_core()
    core.add_request("r", prompt(8, 21), SamplingParams(n=1, max_tokens=12, seed=11))
    assert run(core)["r", 0].output_token_ids == expected[0]


def test_a_request_without_a_seed_gets_one_that_repeats_it() -> None:
    def ask(engine_seed: int, seed: int | None = None):
        core = make_core(seed=engine_seed)
        params = SamplingParams(max_tokens=10, seed=seed)
        return [core.add_request(str(i), prompt(9, 10), params) for i in range(2)], core

    (one, two), core = ask(3)
    run(core)
    assert one.seed != two.seed
    assert one.output_token_ids != two.output_token_ids
    (again, _), core = ask(3)
    run(core)
    assert again.output_token_ids == one.output_token_ids
    (other, _), _ = ask(4)
    assert other.seed != one.seed
    (given, _), core = ask(4, seed=two.seed)
    run(core)
    assert given.output_token_ids == two.output_token_ids


@pytest.mark.parametrize("min_tokens", range(5))
def test_min_tokens_holds_off_every_end_token(min_tokens: int) -> None:
    """vllm#46243, #5849: off by one; the second end token not suppressed."""
    request = answer(
        make_core(eos=(5, 6)),
        prompt(10, 9),
        logit_bias={5: 100, 6: 70, 8: 40},
        min_tokens=min_tokens,
        max_tokens=20,
        temperature=0,
        stop_token_ids=[8],
    )
    assert request.num_output_tokens == min_tokens + 1
    assert not {5, 6, 8} & set(request.output_token_ids[:-1])
    assert (request.output_token_ids[-1], request.finish_reason) == (5, FinishReason.STOP)


# -- faults and aborts ------------------------------------------------------------------------


class Poisoned:
    """A backend whose logits are NaN wherever the token 60 was the last seen."""

    def __init__(self, backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str):
        return getattr(self._backend, name)

    def execute(self, batch):
        logits = self._backend.execute(batch)
        logits[batch.input_ids[batch.logits_indices] == 60] = np.nan
        return logits


def clean_prompt(seed: int, length: int) -> list[int]:
    return [token % 60 for token in prompt(seed, length)]


@pytest.mark.parametrize(
    "asked", [{}, {"n": 3}, {"prompt_logprobs": 1}, {"prompt_logprobs": 0, "max_tokens": 0}]
)
def test_nan_fails_its_own_request_only(asked: dict[str, int]) -> None:
    params = {"max_tokens": 6, "logit_bias": {60: -100}, **GREEDY}
    tokens = clean_prompt(11, 18)
    alone = answer(make_core(), tokens, **params)
    core = make_core(wrap=Poisoned)
    before = core.add_request("before", tokens, SamplingParams(**params))
    bad = core.add_request(
        "bad",
        [*tokens, 60, *([1] if "max_tokens" in asked else [])],
        SamplingParams(**{**params, **asked}),
    )
    after = core.add_request("after", tokens, SamplingParams(**params))
    run(core)
    assert bad.finish_reason is FinishReason.ERROR
    assert "NaN" in bad.error
    assert bad.output_token_ids == []
    for request in (before, after):
        assert request.error is None
        assert_same(request, alone)


@pytest.mark.parametrize("budget", [256, 16])
def test_what_a_failed_request_computed_is_not_shared(budget: int) -> None:
    """Neither in the step that failed, nor in the chunks before it, published already."""
    core = make_core(wrap=Poisoned, budget=budget)
    tokens = [*clean_prompt(12, 31), 60]
    assert answer(core, tokens, max_tokens=2).finish_reason is FinishReason.ERROR
    assert answer(core, [*tokens[:-1], 1, 2], max_tokens=2).num_cached_tokens == 0


def test_a_request_that_excludes_every_token_costs_its_neighbours_nothing() -> None:
    """No arithmetic was at fault, so what others have cached stays."""
    core = make_core(eos=(5,))
    tokens = prompt(13, 32)
    answer(core, tokens, max_tokens=1)
    bad = answer(core, prompt(14, 9), max_tokens=4, min_tokens=2, allowed_token_ids=[5])
    assert bad.finish_reason is FinishReason.ERROR
    assert "no token is left" in bad.error
    assert answer(core, tokens, max_tokens=1).num_cached_tokens == 31


@pytest.mark.parametrize("num_steps", range(8))
def test_an_abort_at_any_time_gives_back_every_block(num_steps: int) -> None:
    """llama.cpp#11720, #27604."""
    asked = {"max_tokens": 6, **GREEDY}
    other_prompt = prompt(16, 40)
    alone = answer(make_core(), other_prompt, **asked)
    core = make_core(block_size=4, num_blocks=40, budget=16, max_num_seqs=3)
    core.add_request("gone", prompt(15, 30), SamplingParams(n=2, max_tokens=20))
    other = core.add_request("other", other_prompt, SamplingParams(**asked))
    for _ in range(num_steps):
        step(core)
    core.abort("gone")
    core.cache.check_invariants(core.scheduler.requests())
    assert [r.request_id for r in core.scheduler.requests()] == ["other"] * (not other.is_finished)
    assert sum(core.cache.pool.ref_counts) == len(other.block_table)
    core.abort("gone")
    core.abort("unknown")
    run(core)
    assert_same(other, alone)


# -- what is refused at the door --------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "params", "param", "message"),
    [
        ([], {}, "prompt_token_ids", "empty"),
        ([1, 61], {}, "prompt_token_ids", r"61.*0 to 60"),
        ([1, -1], {}, "prompt_token_ids", "-1"),
        ([1], {"logit_bias": {61: 1.0}}, "logit_bias", "61"),
        ([1], {"allowed_token_ids": [99]}, "allowed_token_ids", "99"),
        ([1], {"stop_token_ids": [61]}, "stop_token_ids", "61"),
        ([1], {"n": 2, "max_tokens": 0}, "n", "max_tokens=0"),
        ([1] * 100, {}, "prompt_token_ids", r"100 tokens.*99.*100"),
        ([1] * 101, {"max_tokens": 0}, "prompt_token_ids", r"101 tokens.*100"),
    ],
)
def test_what_cannot_be_served_is_refused_and_nobody_notices(
    tokens: list[int], params: dict[str, object], param: str, message: str
) -> None:
    core = make_core(max_model_len=100)
    with pytest.raises(InvalidRequestError, match=message) as caught:
        core.add_request("bad", tokens, SamplingParams(**params))
    assert isinstance(caught.value, ValueError)
    assert caught.value.param == param
    assert not core.has_requests
    assert core.cache.pool.num_free == 64
    assert core.cache.stats.prefix_queries == 0
    assert answer(core, prompt(17, 5), max_tokens=2).num_output_tokens == 2


@pytest.mark.parametrize(
    "params",
    [
        {"top_p": float("nan")},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"logit_bias": {1: float("nan")}},
        {"max_tokens": -1},
    ],
)
def test_parameters_that_mean_nothing_are_refused_before_there_is_a_request(params) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**params)
    assert caught.value.param == next(iter(params))


def test_a_tiny_temperature_is_greedy() -> None:
    greedy = answer(make_core(), prompt(18, 9), max_tokens=8, temperature=0)
    tiny = answer(make_core(), prompt(18, 9), max_tokens=8, temperature=1e-9)
    assert tiny.output_token_ids == greedy.output_token_ids


def test_more_than_the_pool_is_refused_and_the_next_one_served() -> None:
    """vllm#39734: it waited for ever, and everybody behind it."""
    core = make_core(random_spec(context_length=1024), num_blocks=20)
    with pytest.raises(ContextLengthError, match="480 tokens") as caught:
        core.add_request("large", [1] * 480, SamplingParams(max_tokens=1))
    assert caught.value.code == "context_length_exceeded"
    assert answer(core, [1] * 16, max_tokens=2).num_output_tokens == 2


def test_a_prompt_just_under_the_limit_gets_the_tokens_that_still_fit() -> None:
    core = make_core(max_model_len=32, num_blocks=2)
    for length, num_tokens in [(31, 1), (30, 2)]:
        request = answer(core, prompt(19, length), max_tokens=50)
        assert (request.num_output_tokens, request.finish_reason) == (
            num_tokens,
            FinishReason.LENGTH,
        )
    assert answer(core, prompt(19, 32), max_tokens=0).finish_reason is FinishReason.LENGTH


def test_a_step_with_nothing_to_do_does_nothing() -> None:
    core = make_core()
    assert core.step() == []
    assert core.num_steps == 0
