"""What the small files beside a folder's vocabulary say: names, added tokens, ends, the template.

Of ``tokenizer_config.json``, ``special_tokens_map.json``, ``added_tokens.json``, ``config.json``,
``generation_config.json`` and the files of chat templates. Where two say the same thing, the one
that transformers would follow wins. This module must not know how text is encoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from octavo.errors import ModelFileError
from octavo.model.files.json_file import entry, read_json_object

if TYPE_CHECKING:
    import os

_MAX_TOKENS: Final = 1 << 22  # of a vocabulary, to bound what a hostile id makes us allocate


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that was added to a vocabulary: a literal that is matched in the text itself."""

    token_id: int
    content: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False

    @property
    def is_control(self) -> bool:
        """Whether it is matched only on request.

        ``<|...|>`` counts as such whatever its flag says, as it does for those who convert models
        to GGUF: Qwen, for one, marks some of its control tokens as not special.
        """
        ends = (("<|", "|>"), ("<\uff5c", "\uff5c>"))
        return self.special or any(
            self.content.startswith(a) and self.content.endswith(b) for a, b in ends
        )


def added_token(values: object, token_id: object, where: str) -> AddedToken:
    """An added token as both kinds of file write it; raises ModelFileError."""
    if not isinstance(values, dict):
        raise ModelFileError(f"{where}: an added token is not an object: {values!r}")
    if type(token_id) is not int or not 0 <= token_id < _MAX_TOKENS:
        raise ModelFileError(
            f"{where}: an added token has the id {token_id!r}; it must be a number from 0 to "
            f"{_MAX_TOKENS - 1}"
        )
    content = entry(values, "content", str, "", where)
    if not content:
        raise ModelFileError(f"{where}: the added token {token_id} has no content")
    special = entry(values, "special", bool, False, where)
    flags = {
        name: entry(values, name, bool, default, where)
        for name, default in (
            ("lstrip", False),
            ("rstrip", False),
            ("single_word", False),
            ("normalized", not special),
        )
    }
    return AddedToken(token_id, content, special, **flags)


class FolderConfig:
    """The small files of a model folder, read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tokenizer = read_json_object(folder / "tokenizer_config.json")
        self._special = read_json_object(folder / "special_tokens_map.json")
        self._config = read_json_object(folder / "config.json")
        self._generation = read_json_object(folder / "generation_config.json")
        self._where = str(folder / "tokenizer_config.json")

    def added_tokens(self) -> list[AddedToken]:
        """The tokens that tokenizer_config.json or added_tokens.json adds, by id."""
        found: dict[int, AddedToken] = {}
        for content, token_id in read_json_object(self.folder / "added_tokens.json").items():
            where = str(self.folder / "added_tokens.json")
            token = added_token({"content": content}, token_id, where)
            found[token.token_id] = token
        decoder = entry(self._tokenizer, "added_tokens_decoder", dict, {}, self._where)
        for key, values in decoder.items():
            token_id = int(key) if key.isascii() and key.isdigit() else key
            token = added_token(values, token_id, self._where)
            found[token.token_id] = token
        return [found[i] for i in sorted(found)]

    def literal(self, role: str) -> str | None:
        """The text of the token of that role (bos, eos, unk, pad), if it has one."""
        for values, name in (
            (self._tokenizer, "tokenizer_config"),
            (self._special, "special_tokens_map"),
        ):
            value = values.get(f"{role}_token")
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, str):
                return value
            if value is not None:
                raise ModelFileError(
                    f"{self.folder / name}.json: {role}_token is {value!r}; it must be a string"
                )
        return None

    def flag(self, name: str) -> bool | None:
        """A flag of tokenizer_config.json; None where it does not say."""
        value: bool | None = entry(self._tokenizer, name, bool, None, self._where)
        return value

    def num_rows(self) -> int:
        """The number of ids that the model has, if config.json says; else 0."""
        where = str(self.folder / "config.json")
        text = entry(self._config, "text_config", dict, {}, where)
        rows: int = entry(self._config, "vocab_size", int, 0, where)
        rows = max(rows, entry(text, "vocab_size", int, 0, where))
        if not 0 <= rows <= _MAX_TOKENS:
            raise ModelFileError(f"{where}: vocab_size is {rows}; at most {_MAX_TOKENS} may be")
        return rows

    def end_ids(self, vocab_size: int) -> frozenset[int]:
        """The ids that end a text by generation_config.json or config.json."""
        ids: set[int] = set()
        for values, name in ((self._generation, "generation_config"), (self._config, "config")):
            value = values.get("eos_token_id")
            for token_id in value if isinstance(value, list) else [value]:
                if token_id is None:
                    continue
                if type(token_id) is not int or not 0 <= token_id < vocab_size:
                    raise ModelFileError(
                        f"{self.folder / name}.json: eos_token_id has {token_id!r}; it must be a "
                        f"token id from 0 to {vocab_size - 1}"
                    )
                ids.add(token_id)
        return frozenset(ids)


def chat_template_source(folder: str | os.PathLike[str]) -> str | None:
    """The chat template of a model folder, or None where it has none.

    ``chat_template.jinja`` comes first, then ``chat_template.json``, then
    ``tokenizer_config.json``; of several named ones, the one that is named ``default``.
    Raises ModelFileError where there are named ones and none is the default.
    """
    root = Path(folder)
    try:
        return (root / "chat_template.jinja").read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{root / 'chat_template.jinja'} cannot be read: {error}") from error
    for name in ("chat_template.json", "tokenizer_config.json"):
        value = read_json_object(root / name).get("chat_template")
        if value is not None:
            return _default_template(value, str(root / name))
    return None


def _default_template(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    named: dict[Any, Any] = {}
    if isinstance(value, dict):
        named = value
    elif isinstance(value, list) and all(isinstance(v, dict) for v in value):
        named = {v.get("name"): v.get("template") for v in value}
    source = named.get("default")
    if not isinstance(source, str):
        names = ", ".join(sorted(map(repr, named))) or "none"
        raise ModelFileError(
            f"{where}: chat_template is neither a string nor a list with a template named "
            f"'default'; it names {names}"
        )
    return source
