"""Reads the small JSON files of a Hugging Face model folder, with every fault named by its file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from octavo.errors import ModelFileError

if TYPE_CHECKING:
    from pathlib import Path

_MAX_BYTES: Final = 256 << 20  # the largest tokenizer.json in use has some 35 MB


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in the file, or an empty one where there is no such file.

    Raises ModelFileError where the file is not readable, not JSON, or no object.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ModelFileError(f"{path} is larger than {_MAX_BYTES} bytes")
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
