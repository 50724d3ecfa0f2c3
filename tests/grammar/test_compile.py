"""Compiling: the place of a fault, the bounds, the cache; and what a matcher allows then."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byte_tokenizer import ByteTokenizer
from octavo.errors import InvalidRequestError
from octavo.grammar import compile as compile_module
from octavo.grammar.compile import CACHE_SIZE, GrammarCompiler
from octavo.grammar.matcher import MaskFiller
from octavo.sampling.structured import StructuredOutputs

TOKENIZER = ByteTokenizer()
VOCAB = 300  # more rows than tokens
COMPILER = GrammarCompiler(TOKENIZER, VOCAB)


def begin(**shape):
    return COMPILER.compile(StructuredOutputs(**shape)).begin()


def allowed(matcher):
    bits = np.unpackbits(matcher.mask.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def advance(matcher, text):
    for token_id in TOKENIZER.encode(text):
        matcher.accept(token_id)
    if matcher.mask is None and not matcher.error:
        filler = MaskFiller(matcher.num_words)
        filler.start([matcher])
        filler.join()
        filler.close()
    return matcher


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ({"regex": "foo("}, "at character 3 of the pattern, 'foo(': unclosed group"),
        ({"regex": "*a"}, "at character 0 of the pattern"),
        ({"regex": "a(?=b)"}, "look-around"),
        ({"regex": "[^\\x00-\\U0010FFFF]"}, "no answer at all"),
        ({"grammar": 'start: "a" b'}, 'at 1(8): unknown name: "b"'),
        ({"grammar": "root ::= foo"}, "Rule 'foo' not found"),
        ({"grammar": 'root ::= "a" )'}, "line 1"),
        ({"grammar": "root ::= " + "(" * 100_000}, "nested too deeply"),
        ({"json": {"properties": {"a": {"items": {"type": "strin"}}}}},
         "at #/properties/a/items: Invalid type: strin"),
        ({"json": {"$defs": {"x": {"pattern": "(a", "type": "string"}}, "$ref": "#/$defs/x"}},
         "at #/$defs/x: at character 0"),
        ({"json": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "(a"}]}},
         "at #/anyOf/1: at character 0"),
        ({"json": {"properties": "x"}}, "properties must be an object"),
        ({"json": {"not": {}}}, 'Unimplemented keys: ["not"]'),
        ({"regex": "(a{1000}){1000}"}, "too many expressions"),
        ({"json": '{"items":' * 500 + "{}" + "}" * 500},
         "recursion limit"),
    ],
)  # fmt: skip
def test_a_fault_has_its_place(shape, told):
    """Row 49: it is found here, in milliseconds, and nothing else knows of it."""
    with pytest.raises(InvalidRequestError) as error:
        begin(**shape)
    assert error.value.param == "structured_outputs"
    assert told in str(error.value)
    assert len(str(error.value)) < 700


def test_what_pythons_re_refuses_and_rusts_regex_takes_is_taken():
    """Row 49's own pattern is one of Rust's: a repetition of a repetition."""
    assert allowed(advance(begin(regex="foo**"), "fo")) == {0, 3 + ord("o")}


def test_end_tokens_where_the_grammar_may_end_and_nowhere_else():
    matcher = begin(regex="a{2,3}")
    assert allowed(matcher) == {3 + ord("a")}
    assert allowed(advance(matcher, "aa")) == {0, 3 + ord("a")}
    assert (matcher.is_ended, matcher.must_end, matcher.error) == (False, False, None)
    advance(matcher, "a")
    assert (matcher.is_ended, matcher.must_end, matcher.error) == (True, True, None)
    matcher = begin(regex="a+")
    advance(matcher, "a").accept(0)
    assert matcher.is_ended
    assert matcher.error is None


def test_control_tokens_and_rows_without_tokens_are_no_text():
    found = allowed(begin(regex="(?s:.)+"))
    assert found & {0, 1, 2} == set()
    assert max(found) < TOKENIZER.vocab_size
    assert 3 + ord("<") in found


def test_a_model_that_knows_no_end_ends_with_its_grammar():
    compiler = GrammarCompiler(ByteTokenizer(frozenset()), VOCAB)
    matcher = compiler.compile(StructuredOutputs(regex="ab?")).begin()
    assert allowed(advance(matcher, "a")) == {3 + ord("b"), VOCAB}
    assert advance(matcher, "b").is_ended


def test_what_does_not_belong_is_an_error_of_its_own():
    matcher = begin(regex="a+")
    other = matcher.fork()
    matcher.accept(3 + ord("b"))
    assert matcher.is_ended
    assert "cannot go on" in matcher.error
    assert "doesn't satisfy the grammar" in matcher.error
    assert other.error is None
    assert allowed(advance(other, "a")) == {0, 3 + ord("a")}


@pytest.mark.parametrize(("cap", "run", "may"), [(8, 8, True), (8, 9, False), (0, 1, False),
                                                 (1, 1, True), (1, 2, False)])  # fmt: skip
def test_runs_of_white_space_are_capped(cap, run, may):
    for shape in ({"json": {"type": "array", "items": {"type": "null"}}}, {"json_object": True}):
        text = "[" if "json" in shape else "{"
        matcher = advance(begin(whitespace=cap, **shape), text + " " * run)
        assert (matcher.error is None) is may


def test_x_guidance_does_not_lift_the_cap():
    schema = {"type": "object", "x-guidance": {"whitespace_pattern": " *"}}
    assert advance(begin(json=schema), "{" + " " * 9).error is not None


def test_gbnf_is_known_by_its_sign():
    gbnf = advance(begin(grammar='root ::= "a" (b | "c")+\nb ::= [0-9]'), "a7c")
    lark = advance(begin(grammar='start: "a" (B | "c")+\nB: /[0-9]/'), "a7c")
    assert gbnf.error is lark.error is None
    # 266 is "12": one digit after the other.
    digits = {3 + ord(c) for c in "0123456789"}
    assert allowed(gbnf) == allowed(lark) == {0, 3 + ord("c"), 266, *digits}


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=5), min_size=1))
def test_a_choice_is_its_very_characters(choices):
    matcher = begin(choice=choices)
    for text in choices:
        twin = advance(matcher.fork(), text)
        assert twin.error is None
        assert 0 in allowed(twin)


def test_a_state_is_a_function_of_the_tokens():
    """Row 51's kind: whether it followed or was begun anew, the same tokens allow the same."""
    tokens = TOKENIZER.encode('{"a":[1,{"b":"x')
    one, filler = begin(json_object=True), MaskFiller(begin(json_object=True).num_words)
    for i in range(len(tokens)):
        one.accept(tokens[i])
        other = begin(json_object=True)
        other.follow(tokens[: i + 1])
        filler.start([one, other])
        filler.join()
        assert allowed(one) == allowed(other)
    filler.close()


def test_the_cache_knows_equals_and_has_an_end(monkeypatch):
    compiler = GrammarCompiler(TOKENIZER, VOCAB)
    count = 0
    compile_one = compile_module._compile

    def counted(*args):
        nonlocal count
        count += 1
        return compile_one(*args)

    monkeypatch.setattr(compile_module, "_compile", counted)
    first = compiler.compile(StructuredOutputs(json='{"type": "null"}'))
    assert compiler.compile(StructuredOutputs(json={"type": "null"})) is first
    assert count == 1
    for i in range(CACHE_SIZE):
        compiler.compile(StructuredOutputs(choice=[str(i)]))
    assert compiler.compile(StructuredOutputs(json={"type": "null"})) is not first
    assert count == CACHE_SIZE + 2
    with pytest.raises(InvalidRequestError):
        compiler.compile(StructuredOutputs(regex="("))
    with pytest.raises(InvalidRequestError):
        compiler.compile(StructuredOutputs(regex="("))


def test_threads_may_compile_at_once():
    compiler = GrammarCompiler(TOKENIZER, VOCAB)
    found = []
    shapes = [StructuredOutputs(regex=f"a{{{i % 3}}}b") for i in range(12)]
    threads = [
        threading.Thread(target=lambda shape=shape: found.append(compiler.compile(shape)))
        for shape in shapes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 3


def test_without_llguidance_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InvalidRequestError, match=r"octavo\[grammar\]") as error:
        GrammarCompiler(TOKENIZER, VOCAB).compile(StructuredOutputs(regex="a"))
    assert error.value.param == "structured_outputs"
