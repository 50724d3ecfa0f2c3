"""JSON objects from strangers: parsed in bounded memory, or a `ModelFileError` that names the byte.

Beyond what `json` checks: the text is UTF-8 (every string in it, too), no key occurs twice in one
object (readers differ in which they take), and a small text cannot make a multitude of objects, nor
such a deep one that printing it would exhaust the stack.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from octavo.errors import ModelFileError
from octavo.model.files.mapped_file import map_file

if TYPE_CHECKING:
    from pathlib import Path

MAX_VALUES: Final = 400_000
"""Opening brackets and commas in one text: what it costs in time and memory to parse. A tensor in a
safetensors header has seven; the largest index has 92,000 entries."""
MAX_DEPTH: Final = 32
MAX_VOCABULARY_BYTES: Final = 256 << 20  # the largest tokenizer.json in use has some 35 MB


def read_json(path: Path, *, max_bytes: int) -> tuple[dict[str, Any], bytes]:
    """Return the object that the file at `path` holds, and the file's bytes.

    Raises `ModelNotFoundError` or `ModelFileError`.
    """
    source = map_file(path, kind="JSON", least_bytes=2)
    with source:
        if len(source) > max_bytes:
            raise ModelFileError(
                f"the file has {len(source)} bytes, more than the {max_bytes} accepted", path=path
            )
        text = source[:]
    return parse_json(text, path), text


def parse_json(text: bytes, path: Path, *, offset: int = 0) -> dict[str, Any]:
    """Return the object that `text` holds, which begins at byte `offset` of the file `path`.

    Raises `ModelFileError`.
    """

    def fault(message: str, at: int = 0) -> ModelFileError:
        return ModelFileError(message, path=path, offset=offset + at)

    # Those inside strings are counted too, which only makes the bound a little tighter.
    num_values = sum(text.count(mark) for mark in (b"{", b"[", b","))
    if num_values > MAX_VALUES:
        raise fault(
            f"the JSON has {num_values} brackets and commas, and at most {MAX_VALUES} are accepted"
        )
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
        if b"\\u" in text:  # an escape can spell half a surrogate pair, which nothing can encode
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise fault("the JSON is not UTF-8", error.start) from None
    except UnicodeEncodeError:
        raise fault("the JSON escapes half a surrogate pair, which is no character") from None
    except json.JSONDecodeError as error:
        at = len(error.doc[: error.pos].encode("utf-8"))
        raise fault(f"not JSON: {error.msg}", at) from None
    except _RepeatedKeyError as error:
        at = max(text.rfind(json.dumps(error.key).encode()), 0)
        raise fault(f"the JSON key {error.key!r} occurs twice", at) from None
    except (RecursionError, ValueError) as error:  # ValueError: an integer of thousands of digits
        raise fault(f"not acceptable JSON: {error}") from None
    if _is_deep(value):
        raise fault(f"the JSON nests more than {MAX_DEPTH} deep")
    if not isinstance(value, dict):
        raise fault(f"the JSON is a {type(value).__name__}, not an object")
    return value


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in the file, or an empty one where there is no such file.

    For the files beside the weights: they may be large, and a repeated key there does no harm.
    Raises ModelFileError where the file is not readable, not JSON, or no object.
    """
    try:
        if path.stat().st_size > MAX_VOCABULARY_BYTES:
            raise ModelFileError(f"{path} is larger than {MAX_VOCABULARY_BYTES} bytes")
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} holds a {type(value).__name__}; it must hold an object")
    return value


def entry(values: dict[str, Any], key: str, kind: type, default: Any, where: str) -> Any:
    """The value of that key, of that kind; the default where it is missing or null."""
    value = values.get(key)
    if value is None:
        return default
    if type(value) is not kind:  # bool is not int here, on purpose
        raise ModelFileError(
            f"{where}: {key} is of type {type(value).__name__}; it must be {kind.__name__}"
        )
    return value


class _RepeatedKeyError(Exception):
    """One object has a key twice."""

    def __init__(self, key: str) -> None:
        self.key = key


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these pairs, whose keys must differ."""
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RepeatedKeyError(key)
            seen.add(key)
    return value


def _is_deep(value: object) -> bool:
    """Whether containers nest more than `MAX_DEPTH` deep in `value`."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [
            child
            for item in containers
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not containers:
            return False
    return True
