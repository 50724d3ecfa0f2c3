"""What a program sees: `from octavo import LLM, SamplingParams`, on a tiny real file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event
from typing import TYPE_CHECKING

import numpy as np
import pytest

import octavo
from octavo import LLM, EngineConfig, Logprob, RequestOutput, SamplingParams
from octavo.errors import (
    ConfigError,
    ContextLengthError,
    InvalidRequestError,
    ModelError,
    ThreadError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LETTERS = [3 + ord(letter) for letter in "abcdefghijklmnopqrstuvwxyz"]  # ids of one-byte tokens
EOS = 2
LONG = "the rain in spain stays mainly in the plain, and the rest of it"


@pytest.fixture
def llm(tiny_model_path: Path) -> Iterator[LLM]:
    """An engine that must be empty again after the test."""
    llm = LLM(str(tiny_model_path), num_kv_blocks=64, max_num_seqs=4)
    yield llm
    assert_empty(llm)


def assert_empty(llm: LLM) -> None:
    assert not llm.core.has_requests
    assert llm.core.cache.num_available_blocks == 64
    llm.core.cache.check_invariants([])
    assert not llm._processor._outputs
    assert not llm._processor._choices


def letters(max_tokens: int = 24, **params: object) -> SamplingParams:
    """A random answer of lower-case letters, one a token."""
    params = {"temperature": 1.0, "seed": 5, "allowed_token_ids": LETTERS, **params}
    return SamplingParams(max_tokens=max_tokens, **params)


GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)


def test_the_public_names() -> None:
    assert set(octavo.__all__) <= set(dir(octavo))
    for name in octavo.__all__:
        assert getattr(octavo, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        octavo.nothing  # noqa: B018


# -- prompts in, outputs out ------------------------------------------------------------------


def test_strings_and_ids_and_mappings_are_the_same_prompt(llm: LLM) -> None:
    ids = llm.tokenizer.encode_prompt(LONG)
    prompts = [LONG, {"prompt": LONG}, {"prompt_token_ids": ids},
               {"prompt_token_ids": tuple(ids)}, {"prompt_token_ids": np.array(ids)}]  # fmt: skip
    outputs = llm.generate(prompts, GREEDY)
    assert all(type(output) is RequestOutput and output.finished for output in outputs)
    assert [output.prompt for output in outputs] == [LONG, LONG, None, None, None]
    assert all(output.prompt_token_ids == ids for output in outputs)
    answers = [output.outputs[0].token_ids for output in outputs]
    assert answers == [answers[0]] * 5
    assert len(answers[0]) == 6
    (alone,) = llm.generate(LONG, GREEDY)
    assert alone.outputs[0].token_ids == answers[0]
    assert alone.outputs[0].text == llm.tokenizer.decode(answers[0])
    assert (alone.outputs[0].finish_reason, alone.outputs[0].stop_reason) == ("length", None)


def test_outputs_keep_the_prompts_order_each_with_its_own_parameters(llm: LLM) -> None:
    prompts = [LONG[i:] for i in range(6)]
    params = [letters(12 - 2 * i, seed=i) for i in range(6)]
    outputs = llm.generate(prompts, params)
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [12, 10, 8, 6, 4, 2]
    assert [output.seed for output in outputs] == list(range(6))
    for prompt, param, output in zip(prompts, params, outputs, strict=True):
        assert llm.generate(prompt, param)[0].outputs[0] == output.outputs[0]
    assert llm.generate([]) == []


def test_the_default_parameters_are_those_of_sampling_params(llm: LLM) -> None:
    (output,) = llm.generate("x")
    assert 1 <= len(output.outputs[0].token_ids) <= 16
    assert llm.generate("x", SamplingParams(seed=output.seed))[0].outputs == output.outputs


def test_a_lower_priority_value_is_served_first(tiny_model_path: Path) -> None:
    llm = LLM(str(tiny_model_path), num_kv_blocks=64, max_num_seqs=1)
    finished: list[str] = []
    outputs = llm.generate(
        ["a", "b", "c"], GREEDY, priority=[5, 1, 3], on_output=lambda o: finished.append(o.prompt)
    )
    assert finished == ["b", "c", "a"]
    assert [output.prompt for output in outputs] == ["a", "b", "c"]


def test_the_second_call_finds_the_prompt_in_the_cache(llm: LLM) -> None:
    salted = {"prompt": LONG, "cache_salt": "tenant"}
    first, second = (llm.generate(salted, GREEDY)[0] for _ in range(2))
    assert len(first.prompt_token_ids) > 17
    assert first.num_cached_tokens == 0
    assert second.num_cached_tokens == (len(first.prompt_token_ids) - 1) // 16 * 16
    assert second.outputs == first.outputs
    assert llm.generate({**salted, "cache_salt": "other"}, GREEDY)[0].num_cached_tokens == 0


def test_choices(llm: LLM) -> None:
    (output,) = llm.generate(LONG, letters(8, n=3))
    assert [choice.index for choice in output.outputs] == [0, 1, 2]
    assert len({choice.text for choice in output.outputs}) == 3
    assert llm.generate(LONG, letters(8, n=3))[0].outputs == output.outputs


def test_logprobs_are_a_dict_a_token(llm: LLM) -> None:
    (output,) = llm.generate(LONG, letters(5, logprobs=2, prompt_logprobs=0))
    choice = output.outputs[0]
    assert len(choice.logprobs) == 5
    for token_id, entry in zip(choice.token_ids, choice.logprobs, strict=True):
        assert next(iter(entry)) == token_id
        assert len(entry) in (2, 3)  # the token itself beside the likeliest two, or one of them
        assert all(type(value) is Logprob for value in entry.values())
        assert entry[token_id].decoded_token == llm.tokenizer.decode([token_id])
        by_rank = sorted(entry.values(), key=lambda value: value.rank)
        assert [value.rank for value in by_rank[:2]] == [1, 2]
        assert by_rank[0].logprob >= by_rank[1].logprob >= by_rank[-1].logprob
    assert output.prompt_logprobs[0] is None
    assert [next(iter(entry)) for entry in output.prompt_logprobs[1:]] == output.prompt_token_ids[
        1:
    ]
    assert llm.generate("x", GREEDY)[0].outputs[0].logprobs is None


def test_max_tokens_0_scores_the_prompt(llm: LLM) -> None:
    """vllm#6521, #10432."""
    asked = SamplingParams(max_tokens=0, prompt_logprobs=1, logprobs=1)
    (output,) = llm.generate(LONG, asked)
    choice = output.outputs[0]
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    assert (choice.text, choice.token_ids, choice.logprobs) == ("", [], [])
    assert choice.finish_reason == "length"


def test_a_conversation_is_rendered_by_the_models_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello <|im_end|>"}]
    (output,) = llm.chat(messages, GREEDY)
    ids = output.prompt_token_ids
    assert ids[0] == 1
    assert ids.count(EOS) == 1  # the template's own; the user's text is no control token
    rendered = llm.tokenizer.decode(ids, skip_special_tokens=False)
    assert rendered.startswith("<|im_start|>user\nhello <|im_end|><|im_end|>\n")
    assert [o.outputs for o in llm.chat([messages, messages], GREEDY)] == [output.outputs] * 2


# -- stop strings -----------------------------------------------------------------------------


def test_a_stop_string_that_spans_tokens_ends_the_answer_and_never_shows(llm: LLM) -> None:
    """vllm#3574, llama.cpp#9867: pieces of it leaked before the match, or text was lost."""
    whole = llm.generate(LONG, letters())[0].outputs[0].text
    assert len(whole) == 24
    for start, length in [(0, 1), (3, 4), (10, 7), (20, 4)]:
        stop = whole[start : start + length]
        start = whole.index(stop)
        for include in (False, True):
            asked = letters(stop=["never", stop], include_stop_str_in_output=include)
            choice = llm.generate(LONG, asked)[0].outputs[0]
            shown = whole[: start + length * include]
            assert choice.text == shown
            assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
            assert len(choice.token_ids) == start + length
            so_far = ""
            for piece, _ in llm.stream(LONG, asked):
                so_far += piece
                assert shown.startswith(so_far)
            assert so_far == shown


def test_text_held_for_a_stop_string_is_released_when_the_answer_ends_otherwise(llm: LLM) -> None:
    whole = llm.generate(LONG, letters(10))[0].outputs[0].text
    stop = whole[-3:] + "#"
    for asked in (
        letters(10, stop=stop),
        letters(11, stop=stop, min_tokens=10, allowed_token_ids=[*LETTERS, EOS],
                logit_bias={EOS: 100}),
    ):  # fmt: skip
        pieces, outputs = zip(*llm.stream(LONG, asked), strict=True)
        output = outputs[-1]
        assert "".join(pieces) == output.outputs[0].text == whole
        assert output.outputs[0].finish_reason == ("length" if asked.min_tokens == 0 else "stop")


def test_a_stop_string_counts_after_min_tokens_only(llm: LLM) -> None:
    whole = llm.generate(LONG, letters())[0].outputs[0].text
    letter = max(set(whole), key=whole.count)
    places = [i for i, found in enumerate(whole) if found == letter]
    assert len(places) >= 3
    choice = llm.generate(LONG, letters(stop=letter, min_tokens=places[1]))[0].outputs[0]
    assert choice.text == whole[: places[1]]


def test_the_end_token_is_among_the_ids_and_not_in_the_text(llm: LLM) -> None:
    asked = {"allowed_token_ids": [*LETTERS, EOS], "logit_bias": {EOS: 100}, "min_tokens": 3}
    choice = llm.generate(LONG, letters(**asked))[0].outputs[0]
    assert len(choice.token_ids) == 4
    assert choice.token_ids[-1] == EOS
    assert len(choice.text) == 3
    assert (choice.finish_reason, choice.stop_reason) == ("stop", None)
    stopped = llm.generate(LONG, letters(stop_token_ids=[choice.token_ids[1]]))[0].outputs[0]
    assert stopped.text == choice.text[: len(stopped.token_ids) - 1]
    assert stopped.stop_reason == choice.token_ids[1]


# -- streams ----------------------------------------------------------------------------------


def test_the_pieces_of_a_stream_joined_are_the_text(llm: LLM) -> None:
    asked = SamplingParams(max_tokens=40, temperature=1.0, seed=1, ignore_eos=True)
    (whole,) = llm.generate(LONG, asked)
    pieces, outputs = zip(*llm.stream(LONG, asked), strict=True)
    output = outputs[-1]
    assert len(pieces) > 10
    assert "".join(pieces) == output.outputs[0].text == whole.outputs[0].text
    assert output.outputs == whole.outputs


def test_leaving_a_stream_gives_everything_back(llm: LLM) -> None:
    for number, _ in enumerate(llm.stream(LONG, letters())):
        if number == 2:
            break
    stream = llm.stream(LONG, letters())
    next(stream)
    assert llm.core.has_requests
    stream.close()


def test_two_streams_at_once_each_show_their_own_text(llm: LLM) -> None:
    """llama.cpp#27148: answers leaked between concurrent requests."""
    asked = [letters(12, seed=seed) for seed in (1, 2)]
    alone = [llm.generate(LONG, param)[0].outputs[0].text for param in asked]
    assert alone[0] != alone[1]
    texts = ["", ""]
    for pieces in zip(*(llm.stream(LONG, param) for param in asked), strict=False):
        for i, (piece, _) in enumerate(pieces):
            texts[i] += piece
    shortest = min(map(len, texts))
    assert shortest > 0
    assert [text[:shortest] for text in texts] == [text[:shortest] for text in alone]


def test_a_stream_loses_nothing_to_a_generate_in_its_midst(llm: LLM) -> None:
    asked = letters(12)
    whole = llm.generate(LONG, asked)[0].outputs[0].text
    stream = llm.stream(LONG, asked)
    text = next(stream)[0]
    llm.generate("other", letters(4, seed=9))
    text += "".join(piece for piece, _ in stream)
    assert text == whole


# -- threads ----------------------------------------------------------------------------------


def test_another_threads_call_is_refused_and_disturbs_nothing(llm: LLM) -> None:
    asked = [letters(12, seed=seed, n=2) for seed in (1, 2, 3)]
    alone = [llm.generate(LONG, param)[0].outputs for param in asked]
    calls = [
        lambda: llm.generate("other", GREEDY),
        lambda: llm.chat([{"role": "user", "content": "x"}], GREEDY),
        lambda: next(llm.stream("other", GREEDY)),
        lambda: next(llm.generate_each(iter([(0, "other", GREEDY, 0)]))),
    ]

    def intrude(_output: RequestOutput) -> None:
        for call in calls:
            with pytest.raises(ThreadError, match="another thread is using this LLM"):
                others.submit(call).result()
        llm.generate("my own", GREEDY)

    with ThreadPoolExecutor(1) as others:
        outputs = llm.generate([LONG] * 3, asked, on_output=intrude)
        assert [output.outputs for output in outputs] == alone
        assert others.submit(calls[0]).result()[0].finished  # one after another is no fault


def test_what_has_begun_waits_for_another_threads_call(llm: LLM) -> None:
    asked = letters(12)
    whole = llm.generate(LONG, asked)[0].outputs[0].text
    is_inside, may_leave = Event(), Event()

    def stay(_output: RequestOutput) -> None:
        is_inside.set()
        assert may_leave.wait(60)

    begun = [llm.stream(LONG, asked), llm.stream("left", asked)]
    each = llm.generate_each((i, LONG, letters(12 * i + 1, seed=5), 0) for i in range(2))
    text, _ = [next(stream)[0] for stream in begun]
    next(each)
    with ThreadPoolExecutor(4) as others:
        inner = others.submit(llm.generate, "other", letters(2), on_output=stay)
        assert is_inside.wait(60)
        waiting = [
            others.submit(lambda: "".join(piece for piece, _ in begun[0])),
            others.submit(begun[1].close),
            others.submit(list, each),
        ]
        assert not wait(waiting, timeout=0.1).done
        may_leave.set()
        assert inner.result()[0].finished
        assert text + waiting[0].result() == whole
        ((_, last),) = waiting[2].result()
        assert last.outputs[0].text[:12] == whole


# -- what goes wrong --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts", "params", "param"),
    [
        (["fine", ""], GREEDY, "prompt"),
        (["fine", {"prompt": ""}], GREEDY, "prompt"),
        (["fine", "\ud800"], GREEDY, "prompt"),
        (["fine", "x " * 600], GREEDY, "prompt"),
        (None, GREEDY, "prompts"),
        (5, GREEDY, "prompts"),
        (b"fine", GREEDY, "prompts"),
        (["fine"], SamplingParams(max_tokens=None, min_tokens=10**9), "min_tokens"),
        (["fine", {"prompt_token_ids": []}], GREEDY, "prompt_token_ids"),
        (["fine", {"prompt_token_ids": [1, 10**6]}], GREEDY, "prompt_token_ids"),
        (["fine", {"prompt_token_ids": [1, True]}], GREEDY, "prompt_token_ids"),
        (["fine", {"prompt_token_ids": [1.0]}], GREEDY, "prompt_token_ids"),
        (["fine", {"prompt_token_ids": "12"}], GREEDY, "prompt_token_ids"),
        (["fine", {"prompt": "x", "unknown": 1}], GREEDY, "prompts"),
        (["fine", {}], GREEDY, "prompts"),
        (["fine", 7], GREEDY, "prompts"),
        (["fine", {"prompt": "x", "cache_salt": 3}], GREEDY, "cache_salt"),
        (["fine", {"prompt_token_ids": [1] * 512}], GREEDY, "prompt_token_ids"),
        (["fine", "x"], [GREEDY], "sampling_params"),
        (["fine", "x"], [GREEDY, SamplingParams(logit_bias={10**6: 1})], "logit_bias"),
        (["fine", "x"], {"max_tokens": 3}, "sampling_params"),
    ],
)
def test_one_bad_prompt_is_refused_and_the_engine_stays_usable(
    llm: LLM, prompts: list, params: object, param: str
) -> None:
    steps = llm.core.num_steps
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate(prompts, params)
    assert caught.value.param == param
    assert isinstance(caught.value, ValueError)
    assert llm.core.num_steps == steps  # nothing was computed
    assert_empty(llm)
    assert llm.generate("fine", GREEDY)[0].finished


@pytest.mark.parametrize("priority", [[0, float("nan")], [0, "1"], [0]])
def test_a_priority_that_orders_nothing_is_refused(llm: LLM, priority: list) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate(["a", "b"], GREEDY, priority=priority)
    assert caught.value.param == "priority"


def test_the_room_behind_the_prompt_bounds_min_tokens(llm: LLM) -> None:
    prompt = {"prompt_token_ids": [5] * 500}
    llm.check(prompt, SamplingParams(max_tokens=None, min_tokens=12))
    with pytest.raises(ContextLengthError, match=r"min_tokens=13 .* 12 tokens"):
        llm.check(prompt, SamplingParams(max_tokens=None, min_tokens=13))


def test_numpys_integers_are_token_ids(llm: LLM) -> None:
    given = ([5, 6], [np.int64(5), np.int32(6)], np.array([5, 6]), (5, 6))
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in given], GREEDY)
    assert all(output.prompt_token_ids == [5, 6] for output in outputs)
    assert all(type(i) is int for output in outputs for i in output.prompt_token_ids)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        (5, "messages"),
        ("hi", "messages"),
        ({"role": "user", "content": "x"}, "messages"),
        ([5], "messages"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": "x" * 3000}], "messages"),
    ],
)
def test_a_conversation_at_fault_is_named(llm: LLM, messages: object, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm.chat(messages)
    assert caught.value.param == param


@pytest.mark.parametrize("kwargs", [5, [1], {"messages": []}, {"add_generation_prompt": True}])
def test_template_arguments_that_are_none_are_refused(llm: LLM, kwargs: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm.chat([{"role": "user", "content": "x"}], chat_template_kwargs=kwargs)
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize("model", [None, 5, b"smollm2"])
def test_a_model_is_a_name_or_a_path(model: object) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(model)
    assert caught.value.param == "model"


def test_check_refuses_what_generate_would(llm: LLM) -> None:
    llm.check("fine", GREEDY)
    with pytest.raises(InvalidRequestError):
        llm.check("", GREEDY)


@pytest.mark.parametrize("choices", [1, 3])
def test_a_request_that_fails_ends_by_itself_with_all_its_choices(llm: LLM, choices: int) -> None:
    impossible = letters(4, n=choices, min_tokens=1, allowed_token_ids=[EOS])
    told: list[RequestOutput] = []
    bad, good = llm.generate(["a", "b"], [impossible, letters(4)], on_output=told.append)
    assert [choice.finish_reason for choice in bad.outputs] == ["error"] * choices
    assert bad.finished
    assert "no token is left" in bad.error
    assert (good.outputs[0].finish_reason, good.error) == ("length", None)
    assert [id(output) for output in told] == [id(bad), id(good)]


@pytest.mark.parametrize("choices", [1, 2])
def test_each_of_many_requests_comes_back_once_with_its_tag(llm: LLM, choices: int) -> None:
    impossible = letters(4, n=choices, min_tokens=1, allowed_token_ids=[EOS])
    requests = [(f"tag{i}", f"prompt {i}", letters(1 + i % 5, n=2), 0) for i in range(40)]
    requests[7] = ("tag7", "prompt 7", impossible, 0)
    found: dict[str, RequestOutput] = {}
    for tag, output in fails_when_idle(llm, llm.generate_each(iter(requests))):
        assert tag not in found
        found[tag] = output
    assert sorted(found) == sorted(tag for tag, *_ in requests)
    assert all(found[tag].prompt == prompt for tag, prompt, *_ in requests)
    assert found["tag7"].outputs[0].finish_reason == "error"


def test_a_generate_inside_the_loop_over_many_requests_disturbs_nothing(llm: LLM) -> None:
    """Its steps end the others' requests too."""
    tags = []
    for tag, _ in llm.generate_each((i, LONG, letters(1 + i), 0) for i in range(3)):
        tags.append(tag)
        llm.generate("other", letters(12, seed=9))
    assert sorted(tags) == [0, 1, 2]


def test_a_callback_is_told_of_every_output_once_whoever_ended_it(llm: LLM) -> None:
    told: list[str] = []

    def nested(output: RequestOutput) -> None:
        told.append(output.prompt)
        llm.generate("other", letters(12, seed=9))

    llm.generate(["b", "a", "c"], [letters(6), letters(1), letters(6)], on_output=nested)
    assert sorted(told) == ["a", "b", "c"]


def test_leaving_the_loop_over_many_requests_gives_everything_back(llm: LLM) -> None:
    for _ in llm.generate_each((i, LONG, letters(9), 0) for i in range(40)):
        break


def fails_when_idle(llm: LLM, outputs: Iterator) -> Iterator:
    """Pass ``outputs`` on; fail where the engine is stepped for ever with nothing to do."""
    steps, idle = llm.core.step, 0

    def step() -> list:
        nonlocal idle
        idle = 0 if llm.core.has_requests else idle + 1
        assert idle < 10, "the engine is empty, and somebody waits for an output"
        return steps()

    llm.core.step = step
    return outputs


def test_an_exception_in_a_callback_leaves_the_engine_empty(llm: LLM) -> None:
    def fail(output: RequestOutput) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        llm.generate(["a", LONG], [letters(1), letters(20)], on_output=fail)
    assert_empty(llm)


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"gpu_memory_utilization": 0.9}, "gpu_memory_utilization"),
        ({"max_num_seq": 4}, "max_num_seq"),
        ({"block_size": 0}, "block_size"),
        ({"backend": "torch"}, "backend"),
        ({"eviction_policy": "random"}, "eviction_policy"),
        ({"max_model_len": 513}, "max_model_len"),
        ({"num_kv_blocks": 10**12}, "num_kv_blocks"),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_named(
    tiny_model_path: Path, settings: dict[str, object], param: str
) -> None:
    with pytest.raises(ConfigError, match=param) as caught:
        LLM(str(tiny_model_path), **settings)
    assert caught.value.param == param


def test_a_model_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        LLM(str(tmp_path / "none.gguf"))
    assert "model" in EngineConfig.__dataclass_fields__


def test_a_pool_smaller_than_the_context_clamps_it_with_a_warning(tiny_model_path: Path) -> None:
    with pytest.warns(UserWarning, match="48 instead of 512"):
        llm = LLM(str(tiny_model_path), num_kv_blocks=3)
    assert llm.core.max_model_len == 48
    assert "3 blocks of 16 tokens" in llm.notes[0]
    choice = llm.generate("hello", letters(None))[0].outputs[0]
    assert choice.finish_reason == "length"


def test_settings_change_no_answer(tiny_model_path: Path, llm: LLM) -> None:
    prompts = [LONG, LONG[:30], "x"]
    asked = letters(10)
    expected = [output.outputs for output in llm.generate(prompts, asked)]
    for settings in (
        {"num_threads": 3, "num_kv_blocks": 64},
        {"num_kv_blocks": 64, "max_num_batched_tokens": 4, "max_num_seqs": 2},
        {"num_kv_blocks": 64, "enable_prefix_caching": False},
        {"num_kv_blocks": 64, "scheduling_policy": "static", "max_num_seqs": 2},
    ):
        other = LLM(str(tiny_model_path), **settings)
        assert [output.outputs for output in other.generate(prompts, asked)] == expected


def test_the_size_of_a_block_changes_no_answer(tiny_model_path: Path) -> None:
    answers = []
    for block_size in (5, 16):
        llm = LLM(
            str(tiny_model_path), backend="reference", num_kv_blocks=300, block_size=block_size
        )
        answers.append([output.outputs for output in llm.generate([LONG, "x"], letters(10))])
    assert answers[0] == answers[1]
