"""What an `hf:` name means, and which files of a repository it selects.

    hf:org/repo                     its one .gguf, or its folder of safetensors
    hf:org/repo:Q4_K_M              the .gguf of that quant, in any case
    hf:org/repo:path/file.gguf      that file
    hf:org/repo:safetensors         the folder, where the repository has .gguf files too
    hf:org/repo@rev[:...]           any of these at a branch, tag or commit

Knows no network and no cache: a repository is a list of names and sizes.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from octavo.config import format_bytes
from octavo.errors import ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

HUB_PREFIX: Final = "hf:"
FOLDER: Final = "safetensors"
"""The choice that means the folder, not a .gguf."""
_FORM: Final = "hf:org/repo, hf:org/repo:Q4_K_M or hf:org/repo:file.gguf, with @revision after repo"

_WEIGHTS: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_MAX_INDEX_BYTES: Final = 1 << 26
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "vocab.json")
_FOLDER_PATTERNS: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.*",
    "merges.txt",
    *_TOKENIZERS,
)
_UNREAD_SUFFIXES: Final = (".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".h5", ".onnx")
_NO_MODELS: Final = ("mmproj", "imatrix")
"""How the names of .gguf files begin that hold an image encoder or calibration data."""

_PART: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?")
_SPLIT: Final = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf", re.IGNORECASE)
_QUANT: Final = re.compile(
    r"(?:^|(?<=[-._]))"
    r"(?:UD-)?(?:I?Q[1-9](?:_[0-9A-Z]+)*|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|F16|FP16|F32|FP32)"
    r"(?=$|[-.])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository, and what is wanted of it."""

    repo: str
    """org/repo"""
    revision: str | None = None
    """A branch, tag or commit; None for the main branch."""
    choice: str | None = None
    """A quant, the path of a .gguf, or `FOLDER`; None where the repository leaves no choice."""

    def __str__(self) -> str:
        revision = "" if self.revision is None else f"@{self.revision}"
        choice = "" if self.choice is None else f":{self.choice}"
        return f"{HUB_PREFIX}{self.repo}{revision}{choice}"

    def choosing(self, choice: str | None) -> HubName:
        """Return the name of something else in the same repository."""
        return HubName(self.repo, self.revision, choice)


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file in a repository."""

    path: str
    num_bytes: int
    digest: str | None = None
    """SHA-256 where the file is in Git LFS, else the SHA-1 of its git blob; None: not known."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A model in GGUF: one file, or several that are parts of one."""

    path: str
    """Of the first part."""
    num_bytes: int
    """Of all parts."""
    num_parts: int

    @property
    def quant(self) -> str | None:
        """The quant that the file's name states, or else the name of a folder around it."""
        for part in reversed(PurePosixPath(self.path).parts):
            stem = part[: -len(".gguf")] if part.lower().endswith(".gguf") else part
            found = _QUANT.findall(stem)
            if found:
                return str(found[-1]).upper()
        return None


def parse_hub_name(text: str) -> HubName:
    """Take an `hf:` name apart, or raise `ModelNotFoundError`."""
    where, colon, choice = text.removeprefix(HUB_PREFIX).partition(":")
    repo, at, revision = where.partition("@")
    parts = repo.split("/")
    if text.startswith(f"{HUB_PREFIX}//") or len(parts) != 2 or not all(map(_is_part, parts)):
        raise ModelNotFoundError(
            f"{text!r} names no repository of the Hugging Face Hub; write {_FORM}"
        )
    if (at and not _is_revision(revision)) or (colon and not (choice and choice.isprintable())):
        fault = "revision" if at and not _is_revision(revision) else "file or quant"
        raise ModelNotFoundError(f"{text!r} has no usable {fault}; write {_FORM}")
    return HubName(repo, revision if at else None, choice if colon else None)


def matching(name: HubName, files: Sequence[HubFile]) -> list[Choice]:
    """Return the .gguf models that the name may mean, smallest first; none where it means a folder.

    Only a name with a path reaches files that hold no language model.
    """
    choices = _gguf_choices(files)
    wanted = name.choice
    if wanted == FOLDER:
        return []
    if wanted is not None and wanted.lower().endswith(".gguf"):
        return [choice for choice in choices if choice.path == wanted] or [
            choice for choice in choices if PurePosixPath(choice.path).name == wanted
        ]
    models = [
        choice
        for choice in choices
        if not PurePosixPath(choice.path).name.lower().startswith(_NO_MODELS)
    ]
    if wanted is None:
        return models
    quant = wanted.upper()
    return [choice for choice in models if choice.quant == quant] or [
        choice for choice in models if choice.quant == f"UD-{quant}"
    ]


def folder_files(
    name: HubName, files: Sequence[HubFile], local: Callable[[HubFile], Path]
) -> list[HubFile]:
    """Return the files of a safetensors model, or raise `ModelNotFoundError` saying what it lacks.

    `local` gives the path on this machine of the one file that has to be read: the index of shards.
    """
    here = {file.path: file for file in files}
    if "config.json" not in here or not any(path.endswith(".safetensors") for path in here):
        raise ModelNotFoundError(_no_model(name, files))
    if not any(tokenizer in here for tokenizer in _TOKENIZERS):
        raise ModelNotFoundError(
            f"{name} has no tokenizer ({', '.join(_TOKENIZERS)}), so its model cannot be run"
        )
    if _WEIGHTS in here:
        weights = [here[_WEIGHTS]]
    elif _INDEX in here:
        shards = _shards(name, local(here[_INDEX]))
        missing = sorted(shards - here.keys())
        if missing:
            raise ModelNotFoundError(f"{name} lacks {missing[0]}, which its {_INDEX} lists")
        weights = [here[_INDEX], *(here[shard] for shard in sorted(shards))]
    else:
        raise ModelNotFoundError(
            f"{name} has neither {_WEIGHTS} nor {_INDEX}: it is an adapter, or not in the layout "
            "of transformers; take a repository that holds a whole model"
        )
    return weights + [
        file
        for file in files
        if any(fnmatchcase(file.path, pattern) for pattern in _FOLDER_PATTERNS)
        and "/" not in file.path
    ]


def choices_text(name: HubName, files: Sequence[HubFile]) -> str:
    """Return a table of what the repository offers, smallest first, and how to take the first."""
    choices = matching(name.choosing(None), files)
    quants = [choice.quant for choice in choices]
    lines, names = [], []
    for choice in choices:
        unique = choice.quant is not None and quants.count(choice.quant) == 1
        label = str(name.choosing(choice.quant if unique else choice.path))
        split = choice.num_parts > 1
        note = f"  (in {choice.num_parts} parts: not supported yet)" if split else ""
        lines.append(
            f"  {format_bytes(choice.num_bytes):>9}  {choice.quant or '?':<10}  {label}{note}"
        )
        if not split:
            names.append(label)
    if names:
        lines.append(f"To take one: octavo pull {shlex.quote(names[0])}")
    return "\n".join(lines)


def ambiguity(name: HubName, files: Sequence[HubFile], where: str) -> str:
    """Return the message for a name that means more than one model."""
    return f"{name} may mean several models {where}; say which:\n{choices_text(name, files)}"


def _is_part(text: str) -> bool:
    """Tell whether this is the name of an owner or a repository."""
    return bool(_PART.fullmatch(text)) and "--" not in text and ".." not in text


def _is_revision(text: str) -> bool:
    """Tell whether this can be a git reference: never one that leads out of the folder of them."""
    clean = text.isprintable() and not any(mark in text for mark in " \\@")
    return clean and all(part and not part.startswith((".", "-")) for part in text.split("/"))


def _gguf_choices(files: Sequence[HubFile]) -> list[Choice]:
    """Gather the .gguf files into models, the parts of one together."""
    groups: dict[tuple[str, int], list[HubFile]] = {}
    for file in files:
        if not file.path.lower().endswith(".gguf"):
            continue
        found = _SPLIT.fullmatch(file.path)
        parts = int(found["parts"]) if found else 1
        key = (found["stem"], parts) if found and parts > 1 else (file.path, 1)
        groups.setdefault(key, []).append(file)
    choices = [
        Choice(min(file.path for file in group), sum(file.num_bytes for file in group), parts)
        for (_, parts), group in groups.items()
    ]
    return sorted(choices, key=lambda choice: (choice.num_bytes, choice.path))


def _shards(name: HubName, index: Path) -> set[str]:
    """Return the file names that an index of shards lists."""
    try:
        if index.stat().st_size > _MAX_INDEX_BYTES:
            raise ValueError(f"it is over {_MAX_INDEX_BYTES} bytes")
        listed = set(json.loads(index.read_bytes())["weight_map"].values())
        if not listed or not all(isinstance(shard, str) for shard in listed):
            raise ValueError("it lists no files")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelNotFoundError(
            f"{name} has an {_INDEX} that cannot be read ({error}); tell its owner, or take "
            "another repository"
        ) from error
    return listed


def _no_model(name: HubName, files: Sequence[HubFile]) -> str:
    """Say that there is nothing to run, and what there is instead."""
    unread = sorted(file.path for file in files if file.path.endswith(_UNREAD_SUFFIXES))
    safetensors = sorted(file.path for file in files if file.path.endswith(".safetensors"))
    if safetensors:
        return f"{name} has {safetensors[0]} but no config.json, so it holds no whole model"
    if unread:
        return (
            f"{name} has its weights only as {unread[0]}; Octavo reads .gguf and .safetensors, "
            "never formats that can run code on loading. Look on the hub for a conversion of it"
        )
    return f"{name} has no .gguf and no .safetensors file: there is no model in it"
