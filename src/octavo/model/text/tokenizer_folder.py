"""Reads the tokenizer of a Hugging Face model folder.

From ``tokenizer.json``, the file of the ``tokenizers`` library; or from ``tokenizer.model``,
SentencePiece's, where that is all there is. Of the first, the library itself reads how text is
normalised and cut; the vocabulary and the added tokens are handed to it without the control
tokens, so that no plain text can give one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from octavo.errors import ModelFileError
from octavo.model.files.json_file import entry, read_json_object
from octavo.model.text import space_prefix
from octavo.model.text.folder_config import AddedToken, FolderConfig, added_token
from octavo.model.text.sentencepiece_file import read_sentencepiece
from octavo.model.text.spm import BYTE_TOKENS, check_bytes, spm_encoders
from octavo.model.text.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    Encoders,
    TokenizerParts,
    byte_level_bytes,
    byte_pair_model,
    check_unicode,
    merge_pairs,
    spm_bytes,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator


def parts_from_folder(folder: str | os.PathLike[str]) -> TokenizerParts:
    """The parts of the folder's tokenizer; raises ModelFileError."""
    root = Path(folder)
    config = FolderConfig(root)
    if (root / "tokenizer.json").is_file():
        try:
            return _from_json(root / "tokenizer.json", config)
        except RecursionError:
            raise ModelFileError(f"{root / 'tokenizer.json'} is nested too deeply") from None
    if (root / "tokenizer.model").is_file():
        return _from_sentencepiece(root / "tokenizer.model", config)
    raise ModelFileError(f"{root} has neither a tokenizer.json nor a tokenizer.model")


# -- tokenizer.json ------------------------------------------------------------------------------


def _from_json(path: Path, config: FolderConfig) -> TokenizerParts:
    file = read_json_object(path)
    where = str(path)
    model = entry(file, "model", dict, {}, where)
    _check_model(model, where)
    vocabulary: dict[str, int] = dict(entry(model, "vocab", dict, {}, where))
    if not vocabulary:
        raise ModelFileError(f"{where}: the model has no vocabulary")
    if set(map(type, vocabulary.values())) - {int}:
        raise ModelFileError(f"{where}: the vocabulary has an id that is not a number")
    added = _added_tokens(file, config, vocabulary, where)
    by_fallback = entry(model, "byte_fallback", bool, False, where)
    if by_fallback:
        check_bytes(vocabulary)
    elif not any(space_prefix.nodes(file.get("pre_tokenizer"), "ByteLevel")):
        raise ModelFileError(
            f"{where}: its BPE is neither byte-level nor has it byte_fallback, so that characters "
            "would be lost; that is not supported"
        )
    tokens, types = _by_id(vocabulary, added, config.num_rows(), by_fallback, where)
    control = [t for t in added if t.is_control]
    left_out = {t.content for t in control if vocabulary.pop(t.content, None) is not None}
    plain = [t for t in added if not t.is_control]
    vocabulary |= {t.content: t.token_id for t in plain}  # so that the library keeps their ids
    bos, eos = config.literal("bos"), config.literal("eos")
    return TokenizerParts(
        tokens,
        types,
        _encoders(file, model, vocabulary, left_out, plain, where),
        spm_bytes if by_fallback else byte_level_bytes,
        named_ids := _named_ids(config, tokens),
        config.end_ids(len(tokens)),
        add_bos="bos" in named_ids and _adds(file, config, "bos", bos),
        add_eos="eos" in named_ids and _adds(file, config, "eos", eos),
        space_prefix=by_fallback and space_prefix.prefixes_space(file, where),
        lstrip_ids=frozenset(t.token_id for t in control if t.lstrip),
        rstrip_ids=frozenset(t.token_id for t in control if t.rstrip),
    )


def _check_model(model: dict[str, Any], where: str) -> None:
    kind = model.get("type", "BPE")  # old files leave it out
    if kind != "BPE":
        raise ModelFileError(f"{where}: a model of type {kind!r} is not supported; only 'BPE' is")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise ModelFileError(f"{where}: {name} is {model[name]!r}, which is not supported")


def _added_tokens(
    file: dict[str, Any], config: FolderConfig, vocabulary: dict[str, int], where: str
) -> list[AddedToken]:
    """The file's added tokens, and those that only the configuration has, by id."""
    found: dict[int, AddedToken] = {}
    listed = entry(file, "added_tokens", list, [], where)
    own = [added_token(v, v.get("id") if isinstance(v, dict) else None, where) for v in listed]
    ids: dict[str, int] = {}
    for token in [*own, *config.added_tokens()]:
        if token.token_id in found and found[token.token_id].content == token.content:
            continue
        known = vocabulary.get(token.content, ids.get(token.content, token.token_id))
        if token.token_id in found or known != token.token_id:
            raise ModelFileError(
                f"{where}: the added token {token.content!r} has the id {token.token_id}, which "
                "contradicts the rest of the vocabulary"
            )
        found[token.token_id] = token
        ids[token.content] = token.token_id
    return [found[i] for i in sorted(found)]


def _by_id(
    vocabulary: dict[str, int],
    added: list[AddedToken],
    num_rows: int,
    by_fallback: bool,
    where: str,
) -> tuple[list[str], list[int]]:
    """The tokens and their types by id; an id without a token is unused."""
    ids = [*vocabulary.values(), *(t.token_id for t in added)]
    size = max(max(ids) + 1, num_rows)
    if min(ids) < 0 or max(ids) > 2 * len(ids) + 1024:
        raise ModelFileError(f"{where}: {len(ids)} tokens have ids from {min(ids)} to {max(ids)}")
    tokens, types = [""] * size, [UNUSED] * size
    for token, i in vocabulary.items():
        if types[i] != UNUSED:
            raise ModelFileError(f"{where}: the id {i} belongs to {tokens[i]!r} and to {token!r}")
        tokens[i], types[i] = token, NORMAL
    if by_fallback:
        for token in BYTE_TOKENS:
            types[vocabulary[token]] = BYTE
    for added_ in added:
        i = added_.token_id
        tokens[i] = added_.content
        types[i] = CONTROL if added_.is_control else USER_DEFINED
    check_unicode(tokens, where)
    return tokens, types


def _encoders(
    file: dict[str, Any],
    model: dict[str, Any],
    vocabulary: dict[str, int],
    left_out: set[str],
    plain: list[AddedToken],
    where: str,
) -> Encoders:
    """The library's tokenizers for the places where a text may stand; see ``Encoders``."""
    bpe = byte_pair_model(
        vocabulary,
        merge_pairs(entry(model, "merges", list, [], where), f"{where}: merges"),
        f"{where}: merges",
        left_out=left_out,
        byte_fallback=entry(model, "byte_fallback", bool, False, where),
        ignore_merges=entry(model, "ignore_merges", bool, False, where),
    )

    def encoder(treatment: dict[str, Any]) -> tokenizers.Tokenizer:
        made = _frame(treatment, where)
        made.model = bpe  # type: ignore[assignment, unused-ignore]
        made.add_tokens([_library_token(token) for token in plain])
        return made

    start = encoder(space_prefix.start(file))
    if not space_prefix.prefixes_space(file, where):
        return Encoders(start, start, start)
    return Encoders(
        start, encoder(space_prefix.after_control(file)), encoder(space_prefix.continuing(file))
    )


def _library_token(token: AddedToken) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
    )


def _frame(parts: dict[str, Any], where: str) -> tokenizers.Tokenizer:
    """A tokenizer that normalises and cuts as the file says, with an empty vocabulary."""
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    text = json.dumps({"version": "1.0", "added_tokens": [], "model": empty, **parts})
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library has no narrower class
        raise ModelFileError(f"{where}: the library cannot read it: {error}") from error


# -- roles -----------------------------------------------------------------------------------------


def _named_ids(config: FolderConfig, tokens: list[str]) -> dict[str, int]:
    ids: dict[str, int] = {}
    for role in ("bos", "eos", "unk", "pad"):
        literal = config.literal(role)
        if literal is None:
            continue
        try:
            ids[role] = tokens.index(literal)
        except ValueError:
            raise ModelFileError(
                f"{config.folder}: {role}_token is {literal!r}, which is not in the vocabulary"
            ) from None
    return ids


def _adds(file: dict[str, Any], config: FolderConfig, role: str, literal: str | None) -> bool:
    """Whether a text gets it: as tokenizer_config.json says, else as tokenizer.json does."""
    flag = config.flag(f"add_{role}_token")
    if flag is not None:
        return flag
    edge = 0 if role == "bos" else -1
    for single in _templates(file.get("post_processor")):
        if single and isinstance(single[edge], dict):
            special = single[edge].get("SpecialToken")
            if isinstance(special, dict) and special.get("id") == literal:
                return True
    return False


def _templates(node: Any) -> Iterator[list[Any]]:
    if isinstance(node, dict):
        if node.get("type") == "TemplateProcessing" and isinstance(node.get("single"), list):
            yield node["single"]
        processors = node.get("processors")
        for child in processors if isinstance(processors, list) else []:
            yield from _templates(child)


# -- tokenizer.model -------------------------------------------------------------------------------


def _from_sentencepiece(path: Path, config: FolderConfig) -> TokenizerParts:
    file = read_sentencepiece(path)
    tokens, types, scores = list(file.tokens), list(file.types), list(file.scores)
    added = config.added_tokens()
    num_rows = max([config.num_rows(), len(tokens), *(t.token_id + 1 for t in added)])
    missing = num_rows - len(tokens)
    tokens += [""] * missing
    types += [UNUSED] * missing
    scores += [0.0] * missing
    for token in added:
        i = token.token_id
        if tokens[i] not in ("", token.content):
            raise ModelFileError(
                f"{config.folder}: the added token {token.content!r} has the id {i}, which in "
                f"{path.name} is {tokens[i]!r}"
            )
        if types[i] != CONTROL:  # what the pieces say of a token is not taken back
            tokens[i], types[i] = token.content, CONTROL if token.is_control else USER_DEFINED
    _check_once(tokens, str(path))
    named_ids = {**file.named_ids, **_named_ids(config, tokens)}
    rstrip_ids = frozenset(t.token_id for t in added if t.rstrip)
    prefix = config.flag("add_prefix_space")
    prefix = file.space_prefix if prefix is None else prefix
    add_bos, add_eos = config.flag("add_bos_token"), config.flag("add_eos_token")
    return TokenizerParts(
        tokens,
        types,
        spm_encoders(tokens, types, scores, space_prefix=prefix, rstrip_ids=rstrip_ids),
        spm_bytes,
        named_ids,
        config.end_ids(len(tokens)),
        add_bos="bos" in named_ids and (add_bos is None or add_bos),
        add_eos="eos" in named_ids and add_eos is True,
        space_prefix=prefix,
        lstrip_ids=frozenset(t.token_id for t in added if t.lstrip),
        rstrip_ids=rstrip_ids,
    )


def _check_once(tokens: Iterable[str], where: str) -> None:
    seen: set[str] = set()
    for token in filter(None, tokens):
        if token in seen:
            raise ModelFileError(f"{where}: with the added tokens, {token!r} is there twice")
        seen.add(token)
