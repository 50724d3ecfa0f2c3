"""JSON objects from strangers: parsed in bounded memory, or a `ModelFileError` that names the byte.

Beyond what `json` checks: the text is UTF-8 (every string in it, too), no key occurs twice in one
object (readers differ in which they take), and a small text cannot make a multitude of objects, nor
such a deep one that printing it would exhaust the stack.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from octavo.errors import ModelFileError
from octavo.model.mapped_file import map_file

if TYPE_CHECKING:
    from pathlib import Path

MAX_VALUES: Final = 400_000
"""Opening brackets and commas in one text: what it costs in time and memory to parse. A tensor in a
safetensors header has seven; the largest index has 92,000 entries."""
MAX_DEPTH: Final = 32


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
    # Those inside strings are counted too, which only makes the bound a little tighter.
    num_values = sum(text.count(mark) for mark in (b"{", b"[", b","))
    if num_values > MAX_VALUES:
        raise ModelFileError(
            f"the JSON has {num_values} brackets and commas, and at most {MAX_VALUES} are accepted",
            path=path,
            offset=offset,
        )
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
        if b"\\u" in text:  # an escape can spell half a surrogate pair, which nothing can encode
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        at = offset + error.start
        raise ModelFileError("the JSON is not UTF-8", path=path, offset=at) from None
    except UnicodeEncodeError:
        raise ModelFileError(
            "the JSON escapes half a surrogate pair, which is no character",
            path=path,
            offset=offset,
        ) from None
    except json.JSONDecodeError as error:
        at = offset + len(error.doc[: error.pos].encode("utf-8"))
        raise ModelFileError(f"not JSON: {error.msg}", path=path, offset=at) from None
    except _RepeatedKeyError as error:
        at = offset + max(text.rfind(json.dumps(error.key).encode()), 0)
        raise ModelFileError(
            f"the JSON key {error.key!r} occurs twice", path=path, offset=at
        ) from None
    except (RecursionError, ValueError) as error:  # ValueError: an integer of thousands of digits
        raise ModelFileError(f"not acceptable JSON: {error}", path=path, offset=offset) from None
    if _is_deep(value):
        raise ModelFileError(f"the JSON nests more than {MAX_DEPTH} deep", path=path, offset=offset)
    if not isinstance(value, dict):
        raise ModelFileError(
            f"the JSON is a {type(value).__name__}, not an object", path=path, offset=offset
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
