"""From the fields of a body that ask for an answer's shape to structured outputs.

OpenAI's ``response_format``, vLLM's ``structured_outputs``, and vLLM's older ``guided_*``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from octavo.errors import InvalidRequestError, shown
from octavo.sampling.structured import PARAM, StructuredOutputs, read_structured_outputs

_GUIDED: Final = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
SHAPE_FIELDS: Final = ("response_format", PARAM, *_GUIDED)


def shape_field(given: Mapping[str, Any]) -> str | None:
    """Return the field by which a body asks for a shape, None where it asks for none.

    Raises `InvalidRequestError` for more than one.
    """
    names = [name for name in SHAPE_FIELDS if given.get(name) is not None]
    if len(names) > 1 and given.get("response_format") == {"type": "text"}:
        names.remove("response_format")
    if len(names) > 1:
        raise InvalidRequestError(
            f"{' and '.join(names)} both say what shape the answer has; give one of them",
            param=names[1],
        )
    return names[0] if names else None


def read_shape(given: Mapping[str, Any]) -> StructuredOutputs | None:
    """Return the shape that a body asks for. Raises `InvalidRequestError`, by the field's name."""
    field = shape_field(given)
    if field is None:
        return None
    with naming_shape(field):
        value = given[field]
        if field == "response_format":
            return _response_format(value)
        if field in _GUIDED:
            return StructuredOutputs(**{_GUIDED[field]: value})
        if isinstance(value, Mapping):
            value = {name: part for name, part in value.items() if part is not None}
        return read_structured_outputs(value)


@contextmanager
def naming_shape(field: str | None) -> Iterator[None]:
    """Let an error about the shape name the field that the body has."""
    try:
        yield
    except InvalidRequestError as error:
        if error.param == PARAM and field not in (None, PARAM):
            text = str(error).replace(PARAM, str(field), 1)
            raise InvalidRequestError(text, param=field) from None
        raise


def _response_format(value: object) -> StructuredOutputs | None:
    """Read OpenAI's ``response_format``; strict or not, the answer has the schema's shape."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or kind not in ("text", "json_object", "json_schema"):
        raise _refused(
            f"response_format={shown(value)} must be an object whose type is text, json_object or "
            "json_schema"
        )
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputs(json_object=True)
    asked = value.get("json_schema")
    if not isinstance(asked, Mapping) or not isinstance(asked.get("schema"), Mapping):
        raise _refused(
            f"response_format has json_schema={shown(asked)}; it must be an object with the schema "
            "as 'schema'"
        )
    if not isinstance(asked.get("strict"), bool | None):
        raise _refused(
            f"response_format has strict={shown(asked['strict'])}; it must be true or false"
        )
    return StructuredOutputs(json=asked["schema"])


def _refused(text: str) -> InvalidRequestError:
    return InvalidRequestError(text, param="response_format")
