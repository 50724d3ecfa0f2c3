"""Models of the Hugging Face Hub that are on this machine: found in huggingface_hub's own cache.

    $HF_HUB_CACHE/models--org--repo/         ($HF_HOME/hub, ~/.cache/huggingface/hub)
        refs/main                            the commit last seen under that name
        snapshots/<commit>/model.gguf        a link to ../../blobs/<hash>

This is the cache that transformers and others use, so what they fetched is found. A record of our
own says which of its models were pulled with Octavo: one name a line. Never asks the network.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from octavo.errors import ModelError, ModelNotFoundError
from octavo.model.remote.hub_errors import needs_package
from octavo.model.remote.hub_name import (
    FOLDER,
    HubFile,
    HubName,
    ambiguity,
    folder_files,
    matching,
    parse_hub_name,
)

_log = logging.getLogger(__name__)

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model that is in the cache."""

    name: str
    """The name that means this model whatever else is in the cache."""
    path: Path
    """A .gguf file, or a folder with a config.json."""
    num_bytes: int


def find_hub_model(text: str) -> Path | None:
    """Return the file or folder in the cache that an `hf:` name means, or None; asks no network.

    Raises `ModelNotFoundError` where the name is malformed or means several files that are here.
    """
    name = parse_hub_name(text)
    snapshot = _snapshot(name)
    if snapshot is None:
        return None
    files = _files_under(snapshot)
    choices = matching(name, files)
    if len(choices) > 1:
        raise ModelNotFoundError(ambiguity(name, files, "in the cache"))
    if choices:
        return snapshot / choices[0].path if choices[0].num_parts == 1 else None
    if name.choice not in (None, FOLDER):
        return None
    try:
        folder_files(name, files, lambda file: snapshot / file.path)
    except ModelNotFoundError:  # other tools often leave a config.json or a tokenizer alone
        return None
    return snapshot


def remember(record: Path, name: str) -> None:
    """Add a pulled model's name to the record, one name a line, unless it is there."""
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        if name not in remembered(record):
            with record.open("a", encoding="utf-8") as file:  # whole lines: pulls may run at once
                file.write(f"{name}\n")
    except OSError as error:
        _log.warning("%s could not be noted in %s for the listing: %s", name, record, error)


def remembered(record: Path) -> list[str]:
    """Return the names in the record, each once."""
    if not record.is_file():
        return []
    lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
    return list(dict.fromkeys(line for line in lines if line))


def list_hub_models(record: Path) -> list[HubModel]:
    """Return those models of the record that are still in the cache."""
    listing = []
    for name in remembered(record):
        try:
            path = find_hub_model(name)
        except ModelError as error:
            _log.warning("%s is left out of the listing: %s", name, error)
            continue
        if path is not None:
            listing.append(HubModel(name, path, size_of(path)))
    return listing


def _snapshot(name: HubName) -> Path | None:
    """Return the folder of the commit that the name means in the cache, or None."""
    folder = repository_folder(name)
    commit = name.revision or "main"
    if not _COMMIT.fullmatch(commit):
        try:
            commit = (folder / "refs" / commit).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return None
        if not _COMMIT.fullmatch(commit):
            return None
    snapshot = folder / "snapshots" / commit
    return snapshot if os.path.isdir(snapshot) else None


def _files_under(snapshot: Path) -> list[HubFile]:
    """Return the files of a snapshot that are really there."""
    paths = (Path(folder, name) for folder, _, names in os.walk(snapshot) for name in names)
    return [
        HubFile(path.relative_to(snapshot).as_posix(), path.stat().st_size)
        for path in paths
        if path.is_file()  # and not a link to a blob that somebody removed
    ]


def repository_folder(name: HubName) -> Path:
    """Return the folder of a repository in the cache, which need not exist."""
    return cache_folder() / f"models--{name.repo.replace('/', '--')}"


def cache_folder() -> Path:
    """Return the folder of huggingface_hub's cache."""
    try:
        from huggingface_hub import constants
    except ImportError as error:
        raise needs_package(error) from error
    return Path(constants.HF_HUB_CACHE)


def is_offline() -> bool:
    """Tell whether huggingface_hub was told to leave the network alone."""
    try:
        from huggingface_hub import constants
    except ImportError as error:
        raise needs_package(error) from error
    return bool(constants.HF_HUB_OFFLINE)


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.num_bytes for file in _files_under(path))
