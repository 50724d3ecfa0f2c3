"""What a shape may be: read, normalised, refused by name."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from octavo import SamplingParams, StructuredOutputs
from octavo.errors import InvalidRequestError
from octavo.sampling.structured import MAX_BYTES


@pytest.mark.parametrize(
    "shape",
    [
        {"json": {"type": "object", "properties": {"b": {}, "a": {}}}},
        {"json": '{ "type": "string" }', "whitespace": 0},
        {"json": True},
        {"regex": "a+"},
        {"choice": ["yes", "no", "yes"]},
        {"grammar": 'root ::= "x"'},
        {"json_object": True, "regex": None},
    ],
)
def test_it_goes_through_json_and_is_a_key(shape):
    params = SamplingParams(structured_outputs=shape)
    again = SamplingParams(**json.loads(json.dumps(asdict(params))))
    assert again == params
    assert hash(again) == hash(params)
    assert params.shape == StructuredOutputs(**shape)
    assert {params.shape: 1}[again.shape] == 1


def test_a_schema_keeps_the_order_of_its_keys_and_loses_its_white_space():
    text = '{"properties": {"b": {}, "a": {"type": "null"}}}'
    one, other = StructuredOutputs(json=text), StructuredOutputs(json=json.loads(text))
    assert one == other
    assert one.json == '{"properties":{"b":{},"a":{"type":"null"}}}'
    turned = StructuredOutputs(json='{"properties":{"a":{"type":"null"},"b":{}}}')
    assert turned != one
    assert StructuredOutputs(choice=["x", "y", "x"]).choice == ("x", "y")


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ({}, "exactly one of"),
        ({"json": {}, "regex": "a"}, "json and regex"),
        ({"json_object": False}, "exactly one of"),
        ({"json_object": 1}, "true or false"),
        ({"json": "{"}, "line 1 column 2"),
        ({"json": "[" * 100_000}, "recursion"),
        ({"json": [1]}, "a schema is an object"),
        ({"json": {"minimum": float("nan")}}, "written as JSON"),
        ({"json": {"x": "\ud800"}}, "lone surrogate"),
        ({"json": {"x": object()}}, "written as JSON"),
        ({"regex": ""}, "empty string"),
        ({"regex": 5}, "must be a string"),
        ({"choice": []}, "one at least"),
        ({"choice": "yes"}, "list of strings"),
        ({"choice": ["a", ""]}, "empty string"),
        ({"grammar": "x" * (MAX_BYTES + 1)}, str(MAX_BYTES)),
        ({"choice": ["x" * 1000 + str(i) for i in range(300)]}, str(MAX_BYTES)),
        ({"regex": "a", "whitespace": -1}, "0 to 1000"),
        ({"regex": "a", "whitespace": True}, "0 to 1000"),
        ({"regexp": "a"}, "'regexp'"),
        ("yes", "give an object"),
    ],
)
def test_what_is_none_is_refused_by_name(shape, told):
    with pytest.raises(InvalidRequestError) as error:
        SamplingParams(structured_outputs=shape)
    assert error.value.param == "structured_outputs"
    assert told in str(error.value)
