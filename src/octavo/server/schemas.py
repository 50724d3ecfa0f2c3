"""What `/openapi.json` says of bodies and answers; `openai/request.py` is who checks them."""

from __future__ import annotations

from typing import Any, Final

from octavo.sampling.params import MAX_STRING_LENGTH, MAX_STRINGS

Schema = dict[str, Any]


def _nullable(**schema: Any) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _integer(low: int | None = None, high: int | None = None) -> Schema:
    limits = {"minimum": low, "maximum": high}
    return _nullable(type="integer", **{k: v for k, v in limits.items() if v is not None})


def _number(low: float | None = None, high: float | None = None) -> Schema:
    limits = {"minimum": low, "maximum": high}
    return _nullable(type="number", **{k: v for k, v in limits.items() if v is not None})


_BOOL: Final = _nullable(type="boolean")
_STRING: Final = _nullable(type="string")
_PLAIN_IDS: Final[Schema] = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "integer", "minimum": 0},
}
_IDS: Final = _nullable(type="array", items={"type": "integer", "minimum": 0})
_TEXTS: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": MAX_STRING_LENGTH}
_STRINGS: Final = _nullable(type="array", maxItems=MAX_STRINGS, items=_TEXTS)

_SHAPE: Final[dict[str, Schema]] = {
    "response_format": _nullable(
        type="object",
        required=["type"],
        properties={
            "type": {"enum": ["text", "json_object", "json_schema"]},
            "json_schema": _nullable(
                type="object",
                required=["schema"],
                properties={"schema": {"type": "object"}, "strict": _BOOL, "name": _STRING},
            ),
        },
    ),
    "structured_outputs": _nullable(
        type="object",
        properties={
            "json": {"anyOf": [{"type": "object"}, {"type": "string"}, {"type": "null"}]},
            "regex": _STRING,
            "choice": _STRINGS,
            "grammar": _STRING,
            "json_object": _BOOL,
            "whitespace": _integer(0, 1000),
        },
        additionalProperties=False,
    ),
    "guided_json": {"anyOf": [{"type": "object"}, {"type": "string"}, {"type": "null"}]},
    "guided_regex": _STRING,
    "guided_choice": _STRINGS,
    "guided_grammar": _STRING,
}

_SAMPLING: Final[dict[str, Schema]] = {
    "model": _STRING,
    "n": _integer(1, 128),
    "temperature": _number(0),
    "top_p": _nullable(type="number", exclusiveMinimum=0, maximum=1),
    "top_k": _integer(-1),
    "min_p": _number(0, 1),
    "seed": _integer(-(2**63), 2**64 - 1),
    "max_tokens": _integer(0),
    "max_completion_tokens": _integer(0),
    "min_tokens": _integer(0),
    "stop": {"anyOf": [_TEXTS, *_STRINGS["anyOf"]]},
    "include_stop_str_in_output": _BOOL,
    "stop_token_ids": _IDS,
    "ignore_eos": _BOOL,
    "repetition_penalty": _number(0.001, 1000),
    "frequency_penalty": _number(-2, 2),
    "presence_penalty": _number(-2, 2),
    "logit_bias": _nullable(type="object", additionalProperties={"type": "number"}),
    "bad_words": _STRINGS,
    "allowed_token_ids": _nullable(**_PLAIN_IDS),
    "prompt_logprobs": _integer(0, 20),
    "skip_special_tokens": _BOOL,
    "stream": _BOOL,
    "stream_options": _nullable(
        type="object", properties={"include_usage": _BOOL, "continuous_usage_stats": _BOOL}
    ),
    "priority": _integer(),
    "cache_salt": _STRING,
    "return_token_ids": _BOOL,
    "timings": _BOOL,
    "user": _STRING,
    **_SHAPE,
}

COMPLETION: Final[Schema] = {
    "type": "object",
    "required": ["prompt"],
    "properties": {
        "prompt": {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
                _PLAIN_IDS,
                {"type": "array", "minItems": 1, "items": _PLAIN_IDS},
            ]
        },
        "echo": _BOOL,
        "logprobs": _integer(0, 20),
        **_SAMPLING,
    },
}

_CONTENT: Final[Schema] = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "text"],
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
            },
        },
        {"type": "null"},
    ]
}
_CALL: Final[Schema] = {
    "type": "object",
    "required": ["function"],
    "properties": {
        "id": {"type": "string"},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name", "arguments"],
            "properties": {
                "name": {"type": "string"},
                "arguments": {"type": "string", "contentMediaType": "application/json"},
            },
        },
    },
}
_MESSAGES: Final[Schema] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"type": "string"},
            "content": _CONTENT,
            "tool_calls": _nullable(type="array", items=_CALL),
            "tool_call_id": _STRING,
        },
    },
}
_FUNCTION_NAME: Final[Schema] = {"type": "string", "pattern": "^[a-zA-Z0-9_.-]{1,128}$"}
_NAMED_FUNCTION: Final[Schema] = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": _FUNCTION_NAME},
        },
    },
}
_TOOL: Final[Schema] = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": _FUNCTION_NAME,
                "description": _STRING,
                "strict": _BOOL,
                "parameters": _nullable(type="object", properties={"type": {"const": "object"}}),
            },
        },
    },
}
_ALLOWED_TOOLS: Final[Schema] = {
    "type": "object",
    "required": ["type", "allowed_tools"],
    "properties": {
        "type": {"const": "allowed_tools"},
        "allowed_tools": {
            "type": "object",
            "required": ["mode", "tools"],
            "properties": {
                "mode": {"enum": ["auto", "required"]},
                "tools": {"type": "array", "minItems": 1, "items": _NAMED_FUNCTION},
            },
        },
    },
}
_TOOL_CHOICE: Final[Schema] = {
    "anyOf": [
        {"enum": ["none", "auto", "required", None]},
        _NAMED_FUNCTION,
        _ALLOWED_TOOLS,
    ]
}
_TEMPLATE: Final[dict[str, Schema]] = {
    "add_generation_prompt": _BOOL,
    "continue_final_message": _BOOL,
    "chat_template_kwargs": _nullable(type="object"),
}

CHAT: Final[Schema] = {
    "type": "object",
    "required": ["messages"],
    "properties": {
        "messages": _MESSAGES,
        "tools": _nullable(type="array", items=_TOOL),
        "tool_choice": _TOOL_CHOICE,
        "parallel_tool_calls": _BOOL,
        "logprobs": _BOOL,
        "top_logprobs": _integer(0, 20),
        **_TEMPLATE,
        **_SAMPLING,
    },
}

TOKENIZE: Final[Schema] = {
    "type": "object",
    "properties": {
        "model": _STRING,
        "prompt": {"type": "string"},
        "messages": _MESSAGES,
        "tools": _nullable(type="array", items=_TOOL),
        "tool_choice": _TOOL_CHOICE,
        "add_special_tokens": _BOOL,
        "return_token_strs": _BOOL,
        **_TEMPLATE,
    },
}

DETOKENIZE: Final[Schema] = {
    "type": "object",
    "required": ["tokens"],
    "properties": {
        "model": _STRING,
        "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    },
}

_ERROR: Final[Schema] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": _STRING,
                "code": _STRING,
            },
        }
    },
}
_REASONS: Final = {
    400: "A field cannot be honoured, or the prompt is too long; `param` names it.",
    401: "The API key is missing or wrong.",
    404: "No such model.",
    408: "The body did not come in time.",
    413: "The body is too long.",
    429: "As many requests wait as may; Retry-After says when to try again.",
    500: "The engine failed in a step of this request.",
    503: "The server is draining, or its engine has stopped.",
}


def documented(body: Schema) -> dict[str, Any]:
    """Return what FastAPI needs to know of a route that takes ``body``."""
    answers = answers_json(*_REASONS)
    if "stream" in body["properties"]:
        event = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
        answers["responses"][200]["content"]["text/event-stream"] = {"schema": event}
    return {
        **answers,
        "openapi_extra": {
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}}
        },
    }


def answers_json(*errors: int) -> dict[str, Any]:
    """Return what FastAPI needs to know of a route that answers an object, or these errors."""
    responses: dict[int | str, dict[str, Any]] = {
        200: {"content": {"application/json": {"schema": {"type": "object"}}}}
    }
    for status in errors:
        schema = {"type": "object"} if status == 503 else _ERROR
        responses[status] = {
            "description": _REASONS[status],
            "content": {"application/json": {"schema": schema}},
        }
    return {"responses": responses}
