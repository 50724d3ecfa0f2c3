"""Which texts a tokenizer.json puts a space before, and the same file without that.

The library's normalisers and pre-tokenizers are trees of JSON objects; these look at such a tree or
make a changed one. This module must not know of vocabularies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from octavo.errors import ModelFileError
from octavo.model.text.vocabulary import SPACE_MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_TREES: Final = ("normalizer", "pre_tokenizer")
_CHILDREN: Final = ("normalizers", "pretokenizers")  # of a sequence of them


def nodes(tree: Any, kind: str) -> Iterator[dict[str, Any]]:
    """The parts of that type of a normaliser or pre-tokenizer, which may be a sequence."""
    if not isinstance(tree, dict):
        return
    if tree.get("type") == kind:
        yield tree
    for name in _CHILDREN:
        children = tree.get(name)
        for child in children if isinstance(children, list) else []:
            yield from nodes(child, kind)


def prefixes_space(file: dict[str, Any], where: str) -> bool:
    """Whether some text gets a space put before it; raises ModelFileError for an unknown way."""
    metaspaces = list(nodes(file.get("pre_tokenizer"), "Metaspace"))
    for node in metaspaces:
        if node.get("replacement") != SPACE_MARK:
            raise ModelFileError(
                f"{where}: a Metaspace of {node.get('replacement')!r} is not supported; only one "
                f"of {SPACE_MARK!r} is"
            )
    return any(map(_prepends, nodes(file.get("normalizer"), "Prepend"))) or any(
        _scheme(node) != "never" for node in metaspaces
    )


def after_control(file: dict[str, Any]) -> dict[str, Any]:
    """How what comes after a control token is treated: it is not the first of a text."""

    def change(node: dict[str, Any]) -> dict[str, Any] | None:
        first = node.get("type") == "Metaspace" and _scheme(node) == "first"
        return _never(node) if first else node

    return {name: _changed(file.get(name), change) for name in _TREES}


def continuing(file: dict[str, Any]) -> dict[str, Any]:
    """How what goes on in the middle of a text is treated: it gets no space."""

    def change(node: dict[str, Any]) -> dict[str, Any] | None:
        if node.get("type") == "Metaspace":
            return _never(node)
        return None if _prepends(node) else node

    return {name: _changed(file.get(name), change) for name in _TREES}


def start(file: dict[str, Any]) -> dict[str, Any]:
    """How what begins a text is treated: as the file says."""
    return {name: file.get(name) for name in _TREES}


def _prepends(node: dict[str, Any]) -> bool:
    return node.get("type") == "Prepend" and node.get("prepend") == SPACE_MARK


def _scheme(node: dict[str, Any]) -> object:
    """Where a Metaspace prefixes: always, first or never; old files have a flag instead."""
    old = "always" if node.get("add_prefix_space", True) else "never"
    return node.get("prepend_scheme", old)


def _never(node: dict[str, Any]) -> dict[str, Any]:
    return {**node, "prepend_scheme": "never", "add_prefix_space": False}


def _changed(tree: Any, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Any:
    """The tree with each of its parts changed; a part that becomes None is left out."""
    if not isinstance(tree, dict):
        return tree
    tree = dict(tree)
    for name in _CHILDREN:
        if isinstance(tree.get(name), list):
            parts = (_changed(child, change) for child in tree[name])
            tree[name] = [part for part in parts if part is not None]
    return change(tree)
