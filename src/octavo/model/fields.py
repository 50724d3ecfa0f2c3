"""The keys of a model file's metadata, each taken only with its type and range checked.

Both formats describe a model as a mapping written by strangers. `Fields` reads one, remembers what
was read, and can so refuse what nobody read. Knows no format and no family.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from octavo.errors import ModelFileError

if TYPE_CHECKING:
    import os
    from collections.abc import Collection

MAX_INT: Final = 2**31 - 1
MAX_LAYERS: Final = 4096
MAX_WIDTH: Final = 1 << 20
"""Of embeddings and heads. Both bound what is made before the tensors are looked at."""


class Fields:
    """The values under one prefix of a mapping; JSON's null counts as absent."""

    __slots__ = ("_read", "_values", "path", "prefix")

    def __init__(
        self, values: Mapping[str, object], prefix: str, path: str | os.PathLike[str]
    ) -> None:
        self._values = values
        self._read: set[str] = set()
        self.prefix = prefix
        """What stands before a key in the mapping."""
        self.path = path

    def fault(self, key: str, message: str) -> ModelFileError:
        """Return the error to raise about `key`."""
        return ModelFileError(f"{self.prefix}{key} {message}", path=self.path)

    def get(self, key: str) -> object:
        """Return a value as it is, None if it is absent."""
        self._read.add(self.prefix + key)
        return self._values.get(self.prefix + key)

    def __contains__(self, key: str) -> bool:
        """Whether there is such a key, null or not."""
        return self.prefix + key in self._values

    def has(self, key: str) -> bool:
        """Whether there is such a key, and it is not null."""
        return self.get(key) is not None

    def child(self, key: str) -> Fields:
        """Return the fields of a nested mapping, none if it is absent."""
        value = {} if self.get(key) is None else self.get(key)
        if not isinstance(value, Mapping):
            raise self.fault(key, f"must be a mapping, and is a {type(value).__name__}")
        prefix = f"{self.prefix}{key}."
        return Fields({f"{prefix}{name}": item for name, item in value.items()}, prefix, self.path)

    def refuse_unread(self, harmless: Collection[str] = ()) -> None:
        """Raise `ModelFileError` for a key that nobody read, unless it is off or harmless."""
        for key, value in self._values.items():
            short = key.removeprefix(self.prefix)
            unread = key.startswith(self.prefix) and key not in self._read
            if unread and value and short not in harmless:  # 0, false and empty mean: off
                raise self.fault(short, "is not known to Octavo, and may change the answer")

    def string(self, key: str, default: str | None = None) -> str:
        """Return a string; required where there is no default."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.fault(key, f"must be a string, and is a {type(value).__name__}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return a truth value."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.fault(key, f"must be true or false, and is a {type(value).__name__}")
        return value

    def integer(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = MAX_INT
    ) -> int:
        """Return an integer from `least` to `most`; required where there is no default."""
        value = self._value(key, default)
        if isinstance(value, list):
            raise self.fault(key, "differs from layer to layer, which is not supported")
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fault(key, f"must be an integer, and is a {type(value).__name__}")
        if not least <= value <= most:
            raise self.fault(key, f"is {value}; it must lie from {least} to {most}")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a positive finite number; required where there is no default."""
        return self._positive(key, self._value(key, default))

    def positives(self, key: str, length: int) -> tuple[float, ...]:
        """Return a list of so many positive finite numbers."""
        return tuple(self._positive(key, value) for value in self.items(key, length))

    def items(self, key: str, length: int) -> list[object]:
        """Return a list of so many values."""
        value = self._value(key, None)
        if not isinstance(value, list):
            raise self.fault(key, f"must be a list, and is a {type(value).__name__}")
        if len(value) != length:
            raise self.fault(key, f"has {len(value)} values; it must have {length}")
        return value

    def _positive(self, key: str, value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.fault(key, f"must be a number, and is a {type(value).__name__}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not (math.isfinite(number) and number > 0):
            raise self.fault(key, f"is {number}; it must be positive and finite")
        return number

    def _value(self, key: str, default: object) -> object:
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.fault(key, "is missing")
        return value
