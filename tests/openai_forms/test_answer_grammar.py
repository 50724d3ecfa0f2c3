"""Reasoning, calls and a given structure in one grammar, asked of llguidance itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from family_templates import template, tokenizer
from octavo.grammar.compile import GrammarCompiler
from octavo.openai.chat import AnswerPlan
from octavo.openai.grammar import answer_grammar
from octavo.openai.reasoning import Reasoning
from octavo.openai.tools.formats import HERMES, LLAMA, format_of, mistral_args
from octavo.openai.tools.request import read_tool_use
from octavo.sampling.params import SamplingParams
from octavo.sampling.structured import StructuredOutputs
from tool_texts import lets_through, num_allowed

if TYPE_CHECKING:
    from octavo.grammar.matcher import Matcher

SHUT = Reasoning("<think>", "</think>", is_open=False)
OPEN = Reasoning("<think>", "</think>", is_open=True)
TOOL = {"type": "function", "function": {"name": "f"}}
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'

STRUCTURES = [
    (StructuredOutputs(json={"type": "integer"}), "12", "x"),
    (StructuredOutputs(json={"type": "object"}), '{        "a":1}', '{         "a":1}'),
    (StructuredOutputs(json_object=True, whitespace=0), '{"a":1}', '{"a": 1}'),
    (StructuredOutputs(json=True), "[1]", "x"),
    (StructuredOutputs(json_object=True), "{}", "12"),
    (StructuredOutputs(regex=r"a/b\/[/\n]c"), "a/b//c", "a/b"),
    (StructuredOutputs(choice=['"é"', "no\n"]), "no\n", "no"),
    (StructuredOutputs(grammar='start: X+ "}"\nX: /[xy]/ // of {\n'), "xyx}", "x"),
]


def rules(structure: Any, reasoning: Any, use: Any = None, form: Any = None) -> str:
    found = answer_grammar(structure, reasoning, use, form, {})
    assert found is not None
    assert found.grammar is not None
    return found.grammar


def test_what_has_one_part_stays_as_it_is() -> None:
    structure = StructuredOutputs(json_object=True)
    assert answer_grammar(None, SHUT, None, HERMES, {}) is None
    assert answer_grammar(structure, None, None, HERMES, {}) is structure


@pytest.mark.parametrize(("structure", "good", "bad"), STRUCTURES)
def test_a_structure_is_that_of_the_text_behind_the_reasoning(
    structure: StructuredOutputs, good: str, bad: str
) -> None:
    for text, thought in ((rules(structure, SHUT), "<think>"), (rules(structure, OPEN), "")):
        assert lets_through(text, f"{thought}\nwell{CALL}\n</think>\n\n{good}")
        assert not lets_through(text, f"{thought}well</think>{bad}")
    assert lets_through(rules(structure, SHUT), good)
    assert not lets_through(rules(structure, OPEN), good)


@pytest.mark.parametrize(("structure", "good", "bad"), STRUCTURES)
@pytest.mark.parametrize("reasoning", [None, SHUT])
def test_a_call_may_take_its_place(
    structure: StructuredOutputs, good: str, bad: str, reasoning: Reasoning | None
) -> None:
    use = read_tool_use({"tools": [TOOL]})
    either = rules(structure, reasoning, use, HERMES)
    assert lets_through(either, good)
    assert lets_through(either, CALL)
    assert not lets_through(either, bad)
    must = rules(
        structure, reasoning, read_tool_use({"tools": [TOOL], "tool_choice": TOOL}), HERMES
    )
    assert not lets_through(must, good)
    assert lets_through(must, CALL)


def test_markers_that_are_control_tokens_are_so_in_the_grammar() -> None:
    """Llguidance's own vocabulary of bytes has control tokens from 256 on."""
    use = read_tool_use({"tools": [TOOL]})
    control = {"[TOOL_CALLS]": 256, "[ARGS]": 257, "</think>": 258, "<|python_tag|>": 259}
    found = answer_grammar(None, OPEN, use, mistral_args(with_id=False), control)
    assert found is not None
    assert found.grammar is not None
    think, call, end = [*b"hm", 258], [256, *b"f", 257, *b"{}"], [256, *b"f", 257]
    assert lets_through(found.grammar, [*think, *b"Hello"])
    assert lets_through(found.grammar, [*think, *b"So:", *call, *call])
    assert num_allowed(found.grammar, [*think, *end, *b"x"]) == len(think) + len(end)
    assert num_allowed(found.grammar, [*think, *b"[TOOL_CALLS]"]) < len(think) + 12
    llama = answer_grammar(None, None, use, LLAMA, control)
    assert llama is not None
    assert llama.grammar is not None
    assert lets_through(llama.grammar, [259, *b'{"name": "f", "parameters": {}}'])
    assert lets_through(llama.grammar, "Hello")


def test_a_models_own_control_tokens_are_known_by_their_ids() -> None:
    mistral = tokenizer("mistral")
    form = format_of(template("mistral").source)
    use = read_tool_use({"tools": [TOOL]})
    found = answer_grammar(None, None, use, form, mistral.control_literals)
    assert found is not None
    compiled = GrammarCompiler(mistral, mistral.vocab_size).compile(found)

    def is_whole(text: str) -> bool:
        matcher = compiled.begin()
        matcher.follow(mistral.encode(text, parse_special=True, continuing=True))
        return matcher.error is None and (matcher.is_ended or ends(matcher))

    def ends(matcher: Matcher) -> bool:
        matcher.accept(mistral.control_literals["</s>"])
        return matcher.error is None

    assert is_whole("Hi é")
    assert is_whole('Hi[TOOL_CALLS] [{"name": "f", "arguments": {}}]')
    assert is_whole('Hi[TOOL_CALLS][{"name": "f", "arguments": {}}]')
    assert not is_whole('Hi[TOOL_CALLS] [{"name": "g", "arguments": {}}]')
    assert not is_whole("Hi[TOOL_CALLS]")
    assert not is_whole("[INST]Hi")  # no other control token is text


@pytest.mark.parametrize(("family", "is_hidden"), [("mistral", False), ("qwen3", True)])
def test_marks_that_are_control_tokens_stay_in_the_text(family: str, is_hidden: bool) -> None:
    """Else nobody could read a call; the grammar lets no other control token through."""
    use = read_tool_use({"tools": [TOOL]})
    plan = AnswerPlan(None, use, format_of(template(family).source))
    params = plan.held_to(SamplingParams(), tokenizer(family))
    assert params.skip_special_tokens is is_hidden
    assert params.shape is not None
    assert AnswerPlan().held_to(SamplingParams(), tokenizer(family)) == SamplingParams()
