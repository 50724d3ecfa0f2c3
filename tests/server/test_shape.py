"""Shapes over HTTP: OpenAI's client, its `parse` helpers, vLLM's fields; and what is refused."""

from __future__ import annotations

import json
import re
import threading
from typing import Literal

import openai
import pytest
from pydantic import BaseModel, Field

MESSAGES = [{"role": "user", "content": "hello"}]
CHAT = {"model": "tiny", "messages": MESSAGES, "max_tokens": 120, "seed": 4}
COMPLETION = "/v1/completions"


class Tag(BaseModel):
    kind: Literal["red", "blue"]
    weight: int = Field(ge=0, le=9)


class Thing(BaseModel):
    ok: bool
    tags: list[Tag] = Field(max_length=2)
    note: str | None = Field(max_length=4)


def test_parse_gives_an_instance_of_the_model(client):
    answer = client.chat.completions.parse(**CHAT, response_format=Thing, temperature=0.5)
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Thing)
    assert Thing.model_validate_json(choice.message.content) == choice.message.parsed


def test_parse_of_a_stream(client):
    with client.chat.completions.stream(**CHAT, response_format=Thing) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Thing)
    whole = client.chat.completions.parse(**CHAT, response_format=Thing)
    assert whole.choices[0].message.content == final.choices[0].message.content


@pytest.mark.parametrize("strict", [True, False, None])
def test_a_schema_is_kept_strict_or_not(client, strict):
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    asked = {"name": "x", "schema": schema, "strict": strict}
    answer = client.chat.completions.create(
        **CHAT, response_format={"type": "json_schema", "json_schema": asked}
    )
    assert json.loads(answer.choices[0].message.content) == {"a": 1}


def test_any_object(client):
    answer = client.chat.completions.create(
        **{**CHAT, "n": 4}, response_format={"type": "json_object"}
    )
    for choice in answer.choices:
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)
        else:
            assert choice.message.content.startswith("{")


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"regex": "[ab]{3}", "json": None}}, "[ab]{3}"),
        ({"structured_outputs": {"choice": ["x y", "z"]}}, "x y|z"),
        ({"guided_regex": "[ab]{3}"}, "[ab]{3}"),
        ({"guided_choice": ["x", "yy"]}, "x|yy"),
        ({"guided_json": '{"enum": [1, 2]}'}, "1|2"),
        ({"guided_json": {"enum": [1, 2]}, "response_format": {"type": "text"}}, "1|2"),
        ({"guided_grammar": 'root ::= "a" "b"{1,3} "c"'}, "ab{1,3}c"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_vllms_fields(client, fields, pattern, stream):
    ask = {"model": "tiny", "prompt": "x", "max_tokens": 80, "seed": 1, "extra_body": fields}
    if stream:
        pieces = client.completions.create(**ask, stream=True)
        text = "".join(piece.choices[0].text for piece in pieces)
    else:
        text = client.completions.create(**ask).choices[0].text
    assert re.fullmatch(pattern, text)


def test_a_server_lives_through_what_does_not_compile(server):
    """Row 49: each is a 400 with its field, and a request beside them goes on undisturbed."""
    beside = {"prompt": "hello", "max_tokens": 60, "ignore_eos": True, "seed": 2}
    expected = server.post(COMPLETION, beside).json()["choices"]
    answers = []
    thread = threading.Thread(target=lambda: answers.append(server.post(COMPLETION, beside)))
    thread.start()
    deep: dict[str, object] = {"type": "string"}
    for _ in range(300):
        deep = {"type": "object", "properties": {"a": deep}}
    bad = [
        ("structured_outputs", {"regex": "*a"}),
        ("structured_outputs", {"json": {"properties": {"a": "string"}}}),
        ("structured_outputs", {"json": deep}),
        ("structured_outputs", {"json": "{" * 50_000}),
        ("guided_grammar", 'start: "a" b'),
        ("guided_grammar", "root ::= " + "(" * 20_000),
        ("guided_regex", "(" * 100_000),
        ("guided_regex", "x" * 300_000),
        ("guided_choice", "ab"),
        ("response_format", "json"),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}),
    ]
    for field, value in bad:
        response = server.post(COMPLETION, {"prompt": "x", "max_tokens": 1, field: value})
        assert response.status_code == 400, (field, response.text)
        error = response.json()["error"]
        assert error["param"] == field
        assert len(error["message"]) < 1000
    thread.join()
    assert answers[0].json()["choices"] == expected


def test_the_message_names_the_bodys_field_and_the_place(client):
    with pytest.raises(openai.BadRequestError) as told:
        client.chat.completions.create(
            **CHAT,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {
                    "type": "object", "properties": {"p": {"type": "string", "pattern": "a("}}}},
            },
        )  # fmt: skip
    assert "response_format: the json does not compile: at #/properties/p: at character 1" in str(
        told.value
    )
