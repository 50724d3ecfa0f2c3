"""Each family's chat template renders as in transformers; users write no control token in any.

What transformers renders is in tests/data/chat_templates (see its README).
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from family_templates import FAMILIES, golden, template, tokenizer
from octavo.errors import ChatTemplateError


def cases() -> list[Any]:
    return [
        pytest.param(family, case, id=f"{family}-{n}")
        for family in FAMILIES
        for n, case in enumerate(golden(family)["cases"])
    ]


@pytest.mark.parametrize(("family", "case"), cases())
def test_it_renders_as_in_transformers(family: str, case: dict[str, Any]) -> None:
    chat = template(family)
    if "error" in case:
        with pytest.raises(ChatTemplateError) as caught:
            chat.render_text(case["messages"], **case["options"])
        assert str(caught.value) == case["error"]
        assert caught.value.http_status == 400
        return
    assert chat.render_text(case["messages"], **case["options"]) == case["text"]


@pytest.mark.parametrize(("family", "case"), [c for c in cases() if "error" not in c.values[1]])
def test_the_ids_spell_the_text(family: str, case: dict[str, Any]) -> None:
    tok, chat = tokenizer(family), template(family)
    ids = chat.render_ids(case["messages"], **case["options"])
    shown = ""  # run by run, as each got a space before it where the family has that rule
    for special, run in groupby(ids, key=tok.special_ids.__contains__):
        shown += tok.decode(run, skip_special_tokens=False, continuing=special)
    expected = case["text"]
    if family == "phi3":  # its tokens swallow the white space after them; <|endoftext|> does not
        expected = re.sub(r"(<\|(?:end|user|assistant|system)\|>)\s+", r"\1", expected)
    if not any(t in m["content"] for m in case["messages"] for t in golden(family)["control"]):
        assert ids == tok.encode(case["text"], parse_special=True)
        assert shown == expected
    else:  # a literal of the user's swallows nothing
        assert re.sub(r"\s", "", shown) == re.sub(r"\s", "", expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_at_most_one_bos_leads(family: str) -> None:
    """As the template says: none is added. (Llama 2's has one before each of the user's turns.)"""
    tok, chat = tokenizer(family), template(family)
    ids = chat.render_ids([{"role": "user", "content": "Hi"}])
    if family in ("qwen2.5", "qwen3", "phi3", "smollm3"):
        assert tok.bos_id not in ids
    else:
        assert ids[0] == tok.bos_id
        assert ids.count(ids[0]) == 1


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=30)
@given(data=st.data())
def test_no_user_writes_a_control_token(family: str, data: st.DataObject) -> None:
    """In the first turn of a user, nor in the system message where the family takes one.

    ``[INST]`` and ``<<SYS>>`` are no tokens in Llama 2's vocabulary: there they are text, and a
    user who writes them cannot be told from the template. No engine can mend that.
    """
    tok, chat = tokenizer(family), template(family)
    literals = golden(family)["control"]
    parts = st.one_of(
        st.sampled_from([*literals, *(t[:2] for t in literals), *(t[2:] for t in literals)]),
        st.sampled_from([" ", "\n", "</think>", "<think>", "[INST]", "<<SYS>>", "\u2581"]),
        st.text(max_size=3),
    )
    content = data.draw(st.lists(parts, max_size=5).map("".join))
    roles = ["user"] if family == "gemma2" else ["system", "user"]
    hostile = [{"role": role, "content": content} for role in roles]
    benign = [{"role": role, "content": "x"} for role in roles]
    specials = [i for i in chat.render_ids(hostile) if i in tok.special_ids]
    expected = [i for i in chat.render_ids(benign) if i in tok.special_ids]
    if family == "phi3" and not content:  # it leaves out an empty system message
        expected = expected[2:]
    if family == "llama3" and not content.strip():
        expected = [expected[0], *expected[4:]]
    assert specials == expected
