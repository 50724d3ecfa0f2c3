"""Random JSON schemas of what programs write: nested, bounded, with choices and references."""

from __future__ import annotations

import random
from typing import Any

PATTERNS = ("^[a-c]{1,4}$", "^(x|yz)+$", "^[A-Z][a-z]?-[0-9]{2}$", "^\\d{3}$", "^a.{0,2}b$")

NAMES = ("id", "name", "a b", "größe", "x-1", 'q"q', "tags", "ok")


def random_schema(seed: int) -> dict[str, Any]:
    """Return the schema of a number: always an object at the top, as tools and clients send."""
    rng = random.Random(seed)
    schema = _object(rng, 3)
    schema["$defs"] = {"leaf": _leaf(rng), "tree": _tree()}
    return schema


def _any(rng: random.Random, depth: int) -> dict[str, Any]:
    kinds = [_leaf] if depth <= 0 else [_leaf, _leaf, _object, _array, _any_of, _reference]
    kind = rng.choice(kinds)
    return kind(rng) if kind in (_leaf, _reference) else kind(rng, depth - 1)


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(
        ["id", "name", "a b", "größe", "x-1", 'q"q', "tags", "ok"], rng.randint(1, 4)
    )
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _any(rng, depth - 1) for name in names},
        "required": rng.sample(names, rng.randint(0, len(names))),
    }
    closed = rng.choice([False, False, "int"])
    schema["additionalProperties"] = {"type": "integer"} if closed else False
    return schema


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(0, 2)
    schema: dict[str, Any] = {"type": "array", "items": _any(rng, depth - 1), "minItems": low}
    schema["maxItems"] = low + rng.randint(0, 3)
    return schema


def _any_of(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_any(rng, depth - 1) for _ in range(rng.randint(1, 3))]}


def _reference(rng: random.Random) -> dict[str, Any]:
    return {"$ref": rng.choice(["#/$defs/leaf", "#/$defs/tree"])}


def _tree() -> dict[str, Any]:
    """Return a schema that holds itself."""
    return {
        "type": "object",
        "properties": {
            "value": {"type": "boolean"},
            "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]},
        },
        "required": ["value", "next"],
        "additionalProperties": False,
    }


def _leaf(rng: random.Random) -> dict[str, Any]:
    low = rng.randint(-50, 50)
    return rng.choice(
        [
            {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 200)},
            {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 9},
            {"type": "integer", "multipleOf": rng.choice([2, 5, 7]), "minimum": 0, "maximum": 90},
            {"type": "number", "minimum": low / 4, "maximum": low / 4 + 3.5},
            {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            {"type": "string", "minLength": rng.randint(0, 2), "maxLength": rng.randint(2, 6)},
            {"type": "string", "pattern": rng.choice(PATTERNS)},
            {"enum": [1, None, 'é\n"', True, {"a": [1, 2]}, 2.5][: rng.randint(1, 6)]},
            {"const": rng.choice(["fixed", 7, None])},
            {"type": rng.choice([["boolean", "null"], "boolean", ["integer", "null"]])},
        ]
    )
