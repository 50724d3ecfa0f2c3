"""Random schemas through an engine: what ends by itself parses and is valid, by `jsonschema`."""

from __future__ import annotations

import json
import os

import jsonschema
import pytest

from octavo import LLM, SamplingParams
from octavo.errors import InvalidRequestError
from schema_cases import random_schema

COUNT = 500 if os.environ.get("OCTAVO_LONG_TESTS") == "1" else 40


@pytest.fixture(scope="module")
def llm(tiny_model_path):
    return LLM(tiny_model_path, num_kv_blocks=1024, max_num_seqs=32, num_threads=2)


def test_every_answer_that_ends_by_itself_is_valid(llm):
    schemas, params, refused = [], [], []
    for seed in range(COUNT):
        schema = random_schema(seed)
        asked = SamplingParams(
            max_tokens=400, temperature=0.9, seed=seed, structured_outputs={"json": schema}
        )
        try:
            llm.grammar_for(asked)
        except InvalidRequestError as error:
            refused.append((seed, str(error)))
            continue
        schemas.append(schema)
        params.append(asked)
    outputs = llm.generate(["x"] * len(schemas), params)
    ended = 0
    for schema, output in zip(schemas, outputs, strict=True):
        (choice,) = output.outputs
        assert output.error is None
        assert choice.finish_reason in ("stop", "length")
        if choice.finish_reason == "stop":
            ended += 1
            jsonschema.validate(
                json.loads(choice.text), schema, cls=jsonschema.Draft202012Validator
            )
    print(f"{COUNT} schemas, {len(refused)} refused, {ended} answers ended and are valid")
    assert ended > COUNT / 2
    assert len(refused) < COUNT / 20, refused
    llm.core.cache.check_invariants([])


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": "x"},
        {"type": "strin"},
        {"$ref": "#/$defs/none"},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#"},
        {"not": {"type": "string"}},
        {"type": "string", "pattern": "(a"},
        {"type": "string", "pattern": "^(?!a)"},
        {"type": "integer", "minimum": 5, "maximum": 1},
        {"enum": []},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "integer", "multipleOf": 999983, "minimum": 17, "maximum": 1e15},
        {"anyOf": [False]},
        False,
    ],
)
def test_a_schema_that_does_not_compile_is_refused_and_kills_nothing(llm, schema):
    asked = {"max_tokens": 3, "structured_outputs": {"json": schema}}
    with pytest.raises(InvalidRequestError) as told:
        llm.generate("x", SamplingParams(**asked))
    assert told.value.param == "structured_outputs"
    assert "does not compile" in str(told.value)
    assert not llm.core.has_requests
    assert llm.generate("x", SamplingParams(max_tokens=1))[0].finished
