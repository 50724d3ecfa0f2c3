"""Reasoning and answer come apart the same, however the text was cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.openai.reader import AnswerReader
from octavo.openai.reasoning import Reasoning, ReasoningSplitter
from octavo.openai.tools.formats import HERMES
from octavo.openai.tools.request import read_tool_use
from tool_texts import cut, places

SHUT = Reasoning("<think>", "</think>", is_open=False)
OPEN = Reasoning("<think>", "</think>", is_open=True)


def split(reasoning: Reasoning, pieces: list[str]) -> tuple[str, str]:
    splitter = ReasoningSplitter(reasoning)
    parts = [splitter.feed(piece) for piece in pieces] + [splitter.feed("", is_last=True)]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


@pytest.mark.parametrize(
    ("reasoning", "text", "thought", "answer"),
    [
        (SHUT, "<think>\nSo\n\nit is.\n</think>\n\nYes.\n", "So\n\nit is.", "Yes.\n"),
        (SHUT, "\n <think>a</think>b", "a", "b"),
        (SHUT, "<think>\n\n</think>\n\nYes.", "", "Yes."),
        (SHUT, " No <think>a</think>", "", " No <think>a</think>"),
        (SHUT, "<thin", "", "<thin"),
        (SHUT, "a</think>b", "", "a</think>b"),
        (SHUT, "<think>cut off\n</thi", "cut off\n</thi", ""),
        (OPEN, "\nSo</think> Yes <think>", "So", " Yes <think>"),
        (OPEN, "<think>a</think>é", "<think>a", "é"),
        (OPEN, "", "", ""),
    ],
)
def test_the_section_comes_apart(
    reasoning: Reasoning, text: str, thought: str, answer: str
) -> None:
    assert split(reasoning, list(text)) == split(reasoning, [text]) == (thought, answer)


fragments = st.sampled_from(["<think>", "</think>", "<th", "</", "\n", "\n\n", " ", "é", "x"])


@pytest.mark.parametrize("reasoning", [SHUT, OPEN], ids=["shut", "open"])
@given(text=st.lists(fragments, max_size=12).map("".join) | st.text(), cuts=places)
def test_any_text_splits_the_same_however_it_is_cut(
    reasoning: Reasoning, text: str, cuts: list[int]
) -> None:
    assert split(reasoning, cut(text, cuts)) == split(reasoning, list(text))


CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


def test_a_call_in_the_reasoning_is_none() -> None:
    use = read_tool_use({"tools": [{"type": "function", "function": {"name": "f"}}]})
    reader = AnswerReader(SHUT, use, HERMES)
    parts = [reader.feed(c) for c in f"<think>\n{CALL}\n</think>\n\n{CALL}"]
    parts.append(reader.feed("", is_last=True))
    assert "".join(part.get("reasoning_content", "") for part in parts) == CALL
    assert "".join(part.get("content", "") for part in parts) == ""
    assert [call["index"] for part in parts for call in part.get("tool_calls", ())] == [0, 0]
    assert reader.has_called
