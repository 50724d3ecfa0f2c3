"""Chat templates: the exact prompt, and no way for a user's text to become a control token."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import ChatTemplateError, InvalidRequestError, ModelFileError
from octavo.model.files.gguf import GGUFFile
from octavo.model.text.chat import ChatTemplate
from octavo.model.text.marked_text import ASCII_IN_OTHER_CASE
from octavo.model.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

_VISIBLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_HIDDEN = [b for b in range(256) if b not in _VISIBLE]
_BYTES = [chr(b) if b in _VISIBLE else chr(0x100 + _HIDDEN.index(b)) for b in range(256)]
START, END, BOS, NOTE = "<|im_start|>", "<|im_end|>", "<s>", "<a b>"
CONTROL = [START, END, BOS, NOTE]
ID = {literal: 256 + n for n, literal in enumerate(CONTROL)}

TOKENIZER = Tokenizer.from_gguf(
    {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [*_BYTES, *CONTROL, "<think>", "us"],
        "tokenizer.ggml.token_type": [1] * 256 + [3] * 4 + [4, 1],
        "tokenizer.ggml.merges": ["u s"],
        "tokenizer.ggml.bos_token_id": ID[BOS],
        "tokenizer.ggml.eos_token_id": ID[END],
        "tokenizer.ggml.add_bos_token": True,
    }
)

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' }}\n"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Does what large templates do: macros, tildes, trimming, looking for and cutting at a tag.
THINKER = """
{%- macro render(x) %}{{ x }}{% endmacro %}
{%- for m in messages %}
    {%- set text = render(m.content) | trim ~ '' %}
    {%- if m.role == 'assistant' and '</think>' in text %}
        {%- set text = text.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {%- if text.startswith('/') %}{% set text = text | upper | replace('/', '!') %}{% endif %}
    {{- '<|im_start|>' ~ m.role ~ '\\n' ~ text ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def user(content: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": content}]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, TOKENIZER)


def specials(ids: list[int]) -> list[int]:
    return [i for i in ids if i in TOKENIZER.special_ids]


def full_text(ids: list[int]) -> str:
    return TOKENIZER.decode(ids, skip_special_tokens=False)


# -- the real model ----------------------------------------------------------------------------

DEFAULT_SYSTEM = (
    "<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> tuple[ChatTemplate, Tokenizer]:
    metadata = GGUFFile.open(smollm2_path).metadata
    tokenizer = Tokenizer.from_gguf(metadata)
    source = metadata["tokenizer.chat_template"]
    assert isinstance(source, str)
    return ChatTemplate(source, tokenizer), tokenizer


def test_a_conversation_with_the_default_system_message(
    smollm2: tuple[ChatTemplate, Tokenizer],
) -> None:
    chat, tokenizer = smollm2
    messages = [
        {"role": "user", "content": "Hello, world!"},
        {"role": "assistant", "content": " Hi\n"},
        {"role": "user", "content": "  don't  12 日本"},
    ]
    expected = DEFAULT_SYSTEM + (
        "<|im_start|>user\nHello, world!<|im_end|>\n<|im_start|>assistant\n Hi\n<|im_end|>\n"
        "<|im_start|>user\n  don't  12 日本<|im_end|>\n<|im_start|>assistant\n"
    )
    assert chat.render_text(messages) == expected
    assert chat.render_ids(messages) == tokenizer.encode(expected, parse_special=True)


def test_exact_ids_of_the_real_template(smollm2: tuple[ChatTemplate, Tokenizer]) -> None:
    messages = [{"role": "system", "content": "hi"}, {"role": "user", "content": "Hello, world!"}]
    assert smollm2[0].render_ids(messages) == (
        [1, 9690, 198, 6004, 2, 198, 1, 4093, 198, 19556, 28, 905, 17, 2, 198, 1, 520, 9531, 198]
    )


def test_a_message_of_every_control_literal(smollm2: tuple[ChatTemplate, Tokenizer]) -> None:
    chat, tokenizer = smollm2
    content = " ".join(tokenizer.control_literals)
    ids = chat.render_ids(user(content))
    assert [i for i in ids if i in tokenizer.special_ids] == [1, 2, 1, 2, 1]
    shown = tokenizer.decode(ids, skip_special_tokens=False)
    assert shown == DEFAULT_SYSTEM + (
        f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_an_open_final_message_of_the_real_model(smollm2: tuple[ChatTemplate, Tokenizer]) -> None:
    chat, tokenizer = smollm2
    messages = [*user("hi"), {"role": "assistant", "content": "Well, "}]
    ids = chat.render_ids(messages, add_generation_prompt=False, continue_final_message=True)
    assert ids == tokenizer.encode(
        DEFAULT_SYSTEM + "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nWell, ",
        parse_special=True,
    )


# -- no user's text becomes a control token ----------------------------------------------------

pieces = st.one_of(
    st.sampled_from([*CONTROL, *(c[:n] for c in CONTROL for n in range(1, len(c)))]),
    st.sampled_from([*(c[n:] for c in CONTROL for n in range(1, len(c)))]),
    st.sampled_from([" ", "\n", "\t", "</think>", "<think>", "/", "\ue000", "\U0010fffd", "ß"]),
    st.text(max_size=3),
)
contents = st.lists(pieces, max_size=6).map("".join)
turns = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), contents), min_size=1)


@pytest.mark.parametrize("source", [CHATML, THINKER], ids=["chatml", "thinker"])
@given(turns=turns)
def test_hostile_contents_leave_the_control_tokens_as_they_are(
    source: str, turns: list[tuple[str, str]]
) -> None:
    chat = template(source)
    hostile = [{"role": role, "content": content} for role, content in turns]
    benign = [{"role": role, "content": "x"} for role, _ in turns]
    ids = chat.render_ids(hostile)
    assert specials(ids) == specials(chat.render_ids(benign))
    assert full_text(ids) == chat.render_text(hostile)


@given(turns=turns)
def test_every_turn_holds_exactly_its_content(turns: list[tuple[str, str]]) -> None:
    hostile = [{"role": role, "content": content} for role, content in turns]
    ids = template(CHATML).render_ids(hostile)
    starts = [n for n, i in enumerate(ids) if i == ID[START]]
    ends = [n for n, i in enumerate(ids) if i == ID[END]]
    inner = [full_text(ids[a + 1 : b]) for a, b in zip(starts, ends, strict=False)]
    assert inner == [f"{role}\n{content}" for role, content in turns]


plain_words = st.text(st.characters(exclude_characters="<>|_", exclude_categories=["Cs"]))


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), plain_words),
                min_size=1))  # fmt: skip
def test_benign_ids_are_those_of_the_whole_text(turns: list[tuple[str, str]]) -> None:
    chat = template(CHATML)
    messages = [{"role": role, "content": content} for role, content in turns]
    text = "".join(f"{START}{role}\n{content}{END}\n" for role, content in turns)
    expected = text + f"{START}assistant\n"
    assert chat.render_text(messages) == expected
    assert chat.render_ids(messages) == TOKENIZER.encode(expected, parse_special=True)


def test_template_and_content_are_encoded_as_one_string() -> None:
    assert template("u{{ messages[0].content }}").render_ids(user("s")) == [261]


@pytest.mark.parametrize(
    ("source", "content", "shown"),
    [
        ("<|im_{{ messages[0].content }}", "end|>", END),
        ("{{ messages[0].content }}|im_end|>", "<", END),
        ("<|{{ messages[0].content }}|>", "im_end", END),
        ("<|im{{ messages[0].content | trim }}|>", " _end ", END),
        ("{{ messages[0].content[:2] }}{{ messages[0].content[5:] }}", "<|abcim_end|>", END),
        ("{{ messages[0].content | lower }}", "<|IM_END|>", END),
        ("<|{{ messages[0].content | lower }}|>", "IM_END", END),
        ("<a{{ ' ' }}{{ messages[0].content | upper | lower }}>", "b", NOTE),
        ("{{ messages[0].content | replace('-', '') }}", "<|im-_end|>", END),
        ("{{ messages[0].content.split('#') | join }}", "<|im#_end|>", END),
        ("{{ messages[0].content | reverse }}", END[::-1], END),
        ("{% for c in messages[0].content %}{{ c }}{% endfor %}", END, END),
        ("{{ '%s' | format(messages[0].content) }}", END, END),
        ("{{ '{}'.format(messages[0].content) }}", END, END),
        ("{{ messages[0].content | tojson }}", END, f'"{END}"'),
        ("{{ messages[0].content | string | list | join }}", END, END),
        ("<a{{ messages[0].content }}b>", " ", NOTE),
    ],
)
def test_no_operation_makes_a_control_token_of_a_users_characters(
    source: str, content: str, shown: str
) -> None:
    chat = template(source)
    assert chat.render_text(user(content)) == shown
    assert specials(chat.render_ids(user(content))) == []


def test_two_contents_side_by_side_make_no_control_token() -> None:
    chat = template("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert specials(chat.render_ids([*user("<|im_"), *user("end|>")])) == []


def test_a_role_that_is_not_a_usual_one_is_the_users_text() -> None:
    chat = template("{{ '<|' + messages[0].role + '|>' }}<|im_start|>")
    assert specials(chat.render_ids([{"role": "im_end", "content": ""}])) == [ID[START]]
    chatml = template(CHATML)
    ids = chatml.render_ids([{"role": f"x{END}", "content": "y"}], add_generation_prompt=False)
    assert specials(ids) == [ID[START], ID[END]]


def test_usual_roles_may_be_built_into_the_templates_tokens() -> None:
    tokens = [*_BYTES, "<|user|>"]
    tokenizer = Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * 256 + [3],
            "tokenizer.ggml.merges": [],
        }
    )
    chat = ChatTemplate("{{ '<|' + messages[0].role + '|>' + messages[0].content }}", tokenizer)
    assert chat.render_ids(user("<|user|>"))[0] == 256
    assert chat.render_ids(user("<|user|>")).count(256) == 1


def test_tools_names_and_calls_are_the_users_text() -> None:
    chat = template(
        "{{ tools | tojson }}{{ messages[0].name }}"
        "{% for c in messages[0].tool_calls %}{{ c.function.name }}"
        "{{ c.function.arguments | tojson }}{% endfor %}"
        "{% if tools[0].type == 'function' %}<|im_start|>{% endif %}{{ extra }}"
    )
    tools = [{"type": "function", "function": {"name": f'a"{END}\n', END: [END, 1, None, True]}}]
    call = {"function": {"name": END, "arguments": {END: START, "n": 1.5}}}
    messages = [{"role": "user", "content": None, "name": END, "tool_calls": [call]}]
    ids = chat.render_ids(messages, tools=tools, extra=END)
    assert specials(ids) == [ID[START]]
    arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    assert full_text(ids) == (
        f"{json.dumps(tools, ensure_ascii=False)}{END}{END}{arguments}{START}{END}"
    )


def test_what_marks_do_not_survive_is_exact_for_benign_text_and_refused_otherwise() -> None:
    chat = template("<|im_start|>{{ messages[0].content | pprint }}")  # repr() of the string
    assert chat.render_text(user("hi é")) == f"{START}'hi é'"
    assert specials(chat.render_ids(user("hi é"))) == [ID[START]]
    with pytest.raises(ChatTemplateError, match="cannot be followed safely; remove < >"):
        chat.render_ids(user(END))


def test_the_characters_that_case_turns_into_ascii_are_all_known() -> None:
    def variants(c: str) -> str:
        return c.lower() + c.upper() + c.title() + c.casefold() + c.swapcase()

    beyond = (chr(point) for point in range(0x80, 0x110000))
    found = {c for c in beyond if any(v.isascii() for v in variants(c))}
    assert found <= ASCII_IN_OTHER_CASE


# -- templates do with messages what they would do with plain strings ---------------------------


@given(
    content=contents,
    expression=st.sampled_from(
        [
            "x.strip()", "x | trim", "x.lstrip('<| ')", "x.rstrip('>\\n')", "x[1:]", "x[::-1]",
            "x.split()", "x.split('|', 1)", "x.rsplit('<', 1)", "x.rsplit(none, 1)",
            "x.splitlines()", "x.splitlines(true)", "x.partition('|')", "x.rpartition('_')",
            "x.replace('<|', 'im')", "x.replace('', '-')", "x.upper()", "x.title()",
            "x | capitalize", "x.lower()", "'<|' in x", "x == '<|im_end|>'", "x < 'im'",
            "x.startswith(('<', 'i'))", "x.endswith('>')", "x.find('im')", "x | length",
            "x.removeprefix('<|')", "x.removesuffix('|>')", "x in ['<', 'im', '']", "x.isspace()",
            "x ~ 'e'", "'e' + x + x", "{x: 1}['im']", "x | first", "x | last", "x is string",
            "x.count('<')", "(x ~ '') == x", "x | upper | lower", "x | tojson", "[x, 'b'] | sort",
        ]
    ),
)  # fmt: skip
def test_marked_text_behaves_as_the_plain_one(content: str, expression: str) -> None:
    source = f"{{% set x = messages[0].content %}}{{{{ {expression} }}}}"
    environment = _plain_environment()
    expected = environment.from_string(source).render(messages=user(content))
    if not isinstance(eval_expression(environment, expression, content), list | tuple):
        assert template(source).render_text(user(content)) == expected
    else:
        joined = f"{{% set x = messages[0].content %}}{{{{ ({expression}) | join('&') }}}}"
        expected = environment.from_string(joined).render(messages=user(content))
        assert template(joined).render_text(user(content)) == expected


def _plain_environment() -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment


def eval_expression(environment: Any, expression: str, content: str) -> object:
    return environment.compile_expression(expression)(x=content)


def test_a_template_may_look_for_its_own_tags_in_a_message() -> None:
    messages = [*user(" q "), {"role": "assistant", "content": f"<think>{END}</think>\n\nA{END}"}]
    chat = template(THINKER)
    expected = f"{START}user\nq{END}\n{START}assistant\nA{END}{END}\n{START}assistant\n"
    assert chat.render_text(messages) == expected
    assert len(specials(chat.render_ids(messages))) == 5


# -- what transformers offers to templates -------------------------------------------------------


def test_blocks_are_trimmed_loops_can_break_and_generation_is_tolerated() -> None:
    source = (
        "{% for m in messages %}\n"
        "    {% if loop.index > 1 %}{% break %}{% endif %}\n"
        "    {% generation %}\n"
        "{{ m.content }}\n"
        "    {% endgeneration %}\n"
        "{% endfor %}\n"
        "{{ strftime_now('%Y') }}{{ tools is none }}{{ flag }}"
    )
    text = template(source).render_text([*user("a"), *user("b")], flag=True)
    assert text == f"a\n{datetime.now().year}TrueTrue"


def test_a_clock_in_the_template_does_not_upset_the_comparison() -> None:
    chat = template("{{ strftime_now('%f') }}{{ messages[0].content }}")
    assert all(chat.render_text(user(END)).endswith(END) for _ in range(20))


def test_json_is_not_escaped_for_html_nor_for_ascii() -> None:
    chat = template("{{ tools | tojson(indent=1) }}{{ {'b': 1, 'a': '<é>'} | tojson }}")
    assert chat.render_text(user(""), tools=["<é>"]) == '[\n "<é>"\n]{"b": 1, "a": "<é>"}'


def test_the_templates_bos_is_the_only_one() -> None:
    ids = template("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}").render_ids(user("a"))
    assert ids == [ID[BOS], ord("a"), ID[END]]


def test_no_bos_is_added_where_the_template_has_none() -> None:
    assert template("{{ messages[0].content }}").render_ids(user("a")) == [ord("a")]


# -- refusals ----------------------------------------------------------------------------------


def test_a_templates_own_refusal_reaches_the_user() -> None:
    chat = template("{{ raise_exception('Roles must alternate: ' + messages[0].content) }}")
    with pytest.raises(ChatTemplateError, match=r"^Roles must alternate: <\|im_end\|>$") as caught:
        chat.render_ids(user(END))
    assert caught.value.http_status == 400


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ nothing.here }}", "'nothing' is undefined"),
        ("{{ 'a' + messages[0].content }}", "can only concatenate str.*message 0 is null"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ missing | tojson }}", "not JSON serializable"),
        ("{% include 'x' %}", "no loader"),
    ],
)
def test_a_template_that_fails_is_a_refused_request(source: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=f"cannot render these messages.*{message}"):
        template(source).render_ids(user(None))


@pytest.mark.parametrize("source", ["{% if %}", "{{ x | no_such_filter }}", "{% generation %}"])
def test_a_template_that_is_not_jinja_is_a_fault_of_the_file(source: str) -> None:
    with pytest.raises(ModelFileError, match=r"chat template is not valid.*line 1"):
        template(source)


@pytest.mark.parametrize(
    ("messages", "param", "message"),
    [
        ([], "messages", "is empty"),
        ("hi", "messages", "must be a list, not str"),
        (["hi"], "messages[0]", "must be an object, not str"),
        ([{"content": "x"}], "messages[0].role", "must be a string"),
        ([{"role": "user"}], "messages[0].content", "content is missing"),
        ([{"role": 1, "content": "x"}], "messages[0].role", "must be a string"),
        ([*user("a"), *user("b"), *user(3)], "messages[2].content", "list of text parts or null"),
        (user([{"type": "image_url"}]), "messages[0].content", "part of type 'image_url'"),
        (user(["x"]), "messages[0].content", "part of type None"),
        (user([{"type": "text"}]), "messages[0].content", r"\[0\].text must be a string"),
        (user("\ud800"), "messages[0].content", "lone surrogate"),
        (user(object()), "messages[0].content", "JSON cannot express"),
    ],
)
def test_malformed_messages_are_refused_by_place(messages: Any, param: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        template(CHATML).render_ids(messages)
    assert caught.value.param == param


def test_template_arguments_are_checked() -> None:
    chat = template(CHATML)
    with pytest.raises(InvalidRequestError, match="'bos_token' is set by the engine"):
        chat.render_ids(user("a"), bos_token=END)
    with pytest.raises(InvalidRequestError, match="lone surrogate"):
        chat.render_ids(user("a"), tools=[{"\udfff": 1}])
    with pytest.raises(InvalidRequestError, match="keys must be strings"):
        chat.render_ids(user("a"), tools=[{1: 1}])
    deep: list[object] = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(InvalidRequestError, match="nested deeper than 64"):
        chat.render_ids(user("a"), tools=deep)


def test_text_parts_are_joined_by_line_breaks() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert template("{{ messages[0].content }}").render_text(user(parts)) == "a\nb"


# -- the end of the conversation -----------------------------------------------------------------


def test_the_generation_prompt_is_on_unless_refused() -> None:
    chat = template(CHATML)
    assert chat.render_text(user("a")).endswith(f"{END}\n{START}assistant\n")
    assert chat.render_text(user("a"), add_generation_prompt=False).endswith(f"a{END}\n")


@pytest.mark.parametrize(("source", "end"), [(CHATML, f"b{END} "), (THINKER, f"b{END}")])
def test_the_final_message_can_be_left_open(source: str, end: str) -> None:
    messages = [*user("a"), {"role": "assistant", "content": f"b{END} "}]
    chat = template(source)
    options = {"add_generation_prompt": False, "continue_final_message": True}
    ids = chat.render_ids(messages, **options)
    assert full_text(ids) == f"{START}user\na{END}\n{START}assistant\n{end}"
    assert specials(ids) == [ID[START], ID[END], ID[START]]
    assert messages[-1]["content"] == f"b{END} "  # the caller's messages stay as they were


def test_a_final_message_that_cannot_be_left_open_is_refused() -> None:
    options = {"add_generation_prompt": False, "continue_final_message": True}
    with pytest.raises(InvalidRequestError, match="exclude each other"):
        template(CHATML).render_ids(user("a"), continue_final_message=True)
    with pytest.raises(InvalidRequestError, match="with text to continue"):
        template(CHATML).render_ids(user(None), **options)
    with pytest.raises(ChatTemplateError, match="leaves out the final message"):
        template("{{ messages[0].content }}").render_ids([*user("a"), *user("b")], **options)
