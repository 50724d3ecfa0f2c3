"""Answers in a shape, from a program: what ends them, and how a shape goes with everything else."""

from __future__ import annotations

import json
import os
import re

import pytest

from octavo import LLM, SamplingParams
from octavo.errors import InvalidRequestError
from octavo.grammar.matcher import Matcher

EOS, LETTER_A = 2, 3 + ord("a")
CHOICE = {"choice": ["yes", "no"]}


@pytest.fixture(scope="module", params=["cpu", "reference"])
def llm(request, tiny_model_path):
    return LLM(
        tiny_model_path, num_kv_blocks=64, max_num_seqs=4, num_threads=2, backend=request.param
    )


@pytest.fixture(autouse=True)
def _is_empty_afterwards(llm):
    yield
    assert not llm.core.has_requests
    assert not llm.core._masks._matchers
    assert not llm.core._draw_rows
    llm.core.cache.check_invariants([])


def answer(llm, shape, **params):
    params = {"max_tokens": 60, "temperature": 1.0, "seed": 3, **params}
    (output,) = llm.generate("x", SamplingParams(structured_outputs=shape, **params))
    return output


def test_the_answer_ends_when_its_grammar_does(llm):
    for seed in range(8):
        (choice,) = answer(llm, CHOICE, seed=seed).outputs
        assert choice.text in ("yes", "no")
        assert (choice.finish_reason, choice.stop_reason) == ("stop", None)
        assert EOS not in choice.token_ids, "no token is computed to say what is known"


@pytest.mark.parametrize(
    ("shape", "pattern"),
    [
        ({"regex": "[A-Z][a-z]{1,3}-\\d{2}"}, "[A-Z][a-z]{1,3}-\\d{2}"),
        ({"grammar": 'root ::= "a" ("b" | "c"){1,3}'}, "a[bc]{1,3}"),
        ({"grammar": 'start: "é" /[xy]{2}/'}, "é[xy]{2}"),
        ({"json": {"enum": ["é\n", 5, None]}}, '("é\\\\n"|5|null)'),
    ],
)
def test_each_kind(llm, shape, pattern):
    (choice,) = answer(llm, shape).outputs
    assert choice.finish_reason == "stop"
    assert re.fullmatch(pattern, choice.text)


def test_what_ends_for_its_length_is_a_beginning(llm):
    (choice,) = answer(llm, {"regex": "[ab]{200}"}, max_tokens=5).outputs
    assert choice.finish_reason == "length"
    assert re.fullmatch("[ab]+", choice.text)


def test_every_choice_has_a_state_of_its_own(llm):
    """More choices than seats: some come back through the prefix cache."""
    shape = {"regex": "[a-e]{6}|[0-9]{4}"}
    output = answer(llm, shape, n=7, temperature=9.0)
    texts = [choice.text for choice in output.outputs]
    assert all(re.fullmatch("[a-e]{6}|[0-9]{4}", text) for text in texts)
    assert len(set(texts)) > 3
    alone = answer(llm, shape, temperature=9.0)
    assert alone.outputs[0].text == texts[0]


def test_raw_logprobs_stay_raw(llm):
    """The first token's logprobs are those of the row, whatever the grammar excludes."""
    shaped = answer(llm, CHOICE, logprobs=5, temperature=0).outputs[0]
    free = answer(llm, None, logprobs=5, temperature=0, max_tokens=1).outputs[0]
    tops = [
        {i: entry.logprob for i, entry in choice.logprobs[0].items() if entry.rank <= 5}
        for choice in (shaped, free)
    ]
    assert tops[0] == tops[1]
    chosen = shaped.logprobs[0][shaped.token_ids[0]]
    assert chosen.rank > 5
    assert chosen.logprob < min(tops[1].values())


def test_min_tokens_and_ignore_eos_forbid_the_end_where_more_may_come(llm):
    for params in ({"min_tokens": 12}, {"ignore_eos": True}):
        (choice,) = answer(llm, {"regex": "[ab]*"}, logit_bias={EOS: 100}, **params).outputs
        least = params.get("min_tokens", 60)
        assert len(choice.text) >= least
        assert re.fullmatch("[ab]+", choice.text)
    (choice,) = answer(llm, {"regex": "[ab]*"}, logit_bias={EOS: 100}).outputs
    assert (choice.text, choice.finish_reason) == ("", "stop")


@pytest.mark.parametrize("params", [{"min_tokens": 9}, {"ignore_eos": True}])
@pytest.mark.parametrize(
    "shape",
    [CHOICE, {"regex": "a{0}"}, {"grammar": 'start: "a" X?\nX: /[^\\x00-\\u{10FFFF}]/'}],
)
def test_a_grammar_that_is_at_its_end_ends_in_spite_of_them(llm, shape, params):
    (choice,) = answer(llm, shape, **params).outputs
    assert choice.finish_reason == "stop"
    assert choice.text in ("yes", "no", "", "a")


def test_stop_strings_and_stop_tokens_cut_it_off(llm):
    (choice,) = answer(llm, {"regex": "ab{3}c"}, stop="bb").outputs
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("a", "stop", "bb")
    (choice,) = answer(llm, {"regex": "ab{3}c"}, stop_token_ids=[3 + ord("b")]).outputs
    assert (choice.text, choice.stop_reason) == ("a", 3 + ord("b"))
    (choice,) = answer(llm, {"regex": "abc"}, stop="c", include_stop_str_in_output=True).outputs
    assert (choice.text, choice.stop_reason) == ("abc", "c")


def test_bias_bad_words_and_allowed_tokens_narrow_it_further(llm):
    (choice,) = answer(llm, {"regex": "[abc]{8}"}, logit_bias={LETTER_A: 100}).outputs
    assert choice.text == "a" * 8
    (choice,) = answer(llm, {"regex": "[abc]{8}"}, allowed_token_ids=[LETTER_A]).outputs
    assert choice.text == "a" * 8
    (choice,) = answer(llm, {"regex": "[ab]{8}"}, bad_words=["a"]).outputs
    assert choice.text == "b" * 8
    # A bias makes nothing of what the grammar excludes.
    (choice,) = answer(llm, {"regex": "[bc]{8}"}, logit_bias={LETTER_A: 100}).outputs
    assert "a" not in choice.text


def test_nothing_left_ends_that_request_alone(llm):
    fine = SamplingParams(max_tokens=8, seed=1)
    (expected,) = llm.generate("x", fine)
    none = SamplingParams(
        max_tokens=8, structured_outputs={"regex": "b+"}, allowed_token_ids=[LETTER_A]
    )
    bad, good = llm.generate(["x", "x"], [none, fine])
    assert bad.outputs[0].finish_reason == "error"
    assert "no token is left: the grammar, allowed tokens" in bad.error
    assert good.outputs[0].token_ids == expected.outputs[0].token_ids
    assert llm.core.num_corrupted == 0


def test_a_grammar_that_fails_midway_ends_that_request_alone(llm, monkeypatch):
    """Such as one whose states outgrow llguidance's limits."""
    take_mask = Matcher.take_mask

    def failing(matcher, mask):
        take_mask(matcher, mask)
        if matcher.num_accepted == 3:
            matcher.error = "the answer's grammar cannot go on: lexer too complex"

    monkeypatch.setattr(Matcher, "take_mask", failing)
    fine = SamplingParams(max_tokens=8, seed=1, ignore_eos=True)
    bad, good = llm.generate(
        ["x", "x"], [SamplingParams(max_tokens=9, structured_outputs={"regex": "b{9}"}), fine]
    )
    assert bad.outputs[0].finish_reason == "error"
    assert "too complex" in bad.error
    assert good.outputs[0].finish_reason == "length"


def test_an_abort_forgets_the_state(llm):
    for _ in llm.stream("x", SamplingParams(structured_outputs={"regex": "[ab]{50}"})):
        break


def test_a_chat_in_json_of_a_real_schema(llm):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}, "b": {"const": "x"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    messages = [{"role": "user", "content": "hello"}]
    params = SamplingParams(max_tokens=80, seed=1, structured_outputs={"json": schema})
    found = json.loads(llm.chat(messages, params)[0].outputs[0].text)
    assert 0 <= found["a"] <= 9
    assert found["b"] == "x"


def test_what_does_not_compile_is_refused_before_anything_is_computed(llm):
    good = SamplingParams(max_tokens=2)
    bad = SamplingParams(structured_outputs={"regex": "("})
    steps = llm.core.num_steps
    with pytest.raises(InvalidRequestError, match="unclosed group"):
        llm.generate(["x", "x"], [good, bad])
    with pytest.raises(InvalidRequestError, match="unclosed group"):
        llm.stream("x", bad)
    assert llm.core.num_steps == steps


def test_a_forked_child_has_threads_of_its_own(llm):
    """Those that make masks; the team of the backend is `tests/backends`' to check."""
    answer(llm, {"regex": "[ab]{5}"})
    first = llm.core._masks._filler
    assert first.is_alive
    first._pid = os.getpid() + 1  # as it looks from a child
    assert answer(llm, {"regex": "[ab]{5}"}).outputs[0].finish_reason == "stop"
    assert llm.core._masks._filler is not first
