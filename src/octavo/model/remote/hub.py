"""Pulls models of the Hugging Face Hub into its own cache, every file checked by hash.

The `huggingface_hub` package moves the bytes, resumes a transfer that breaks, and reads
HF_ENDPOINT, HF_TOKEN, HF_HUB_CACHE, HF_HUB_OFFLINE and the proxy settings; after a plain transfer
it compares sizes alone, so hashes are compared here. Knows no file format.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from octavo.config import format_bytes
from octavo.errors import DownloadError, ModelNotFoundError
from octavo.model.remote.hub_cache import (
    HubModel,
    cache_folder,
    find_hub_model,
    is_offline,
    repository_folder,
    size_of,
)
from octavo.model.remote.hub_errors import cannot_store, offline, translated
from octavo.model.remote.hub_name import (
    FOLDER,
    HubFile,
    HubName,
    ambiguity,
    choices_text,
    folder_files,
    matching,
    parse_hub_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_log = logging.getLogger(__name__)

_SHA256_LENGTH: Final = 64
_CHUNK_BYTES: Final = 1 << 20
_LIBRARY: Final = "octavo"
"""What the hub counts downloads under."""


@dataclass(frozen=True, slots=True)
class _Listing:
    """What the hub says a repository holds."""

    commit: str
    files: Sequence[HubFile]


def pull_hub_model(text: str, *, progress: bool | None = None, force: bool = False) -> HubModel:
    """Fetch what an `hf:` name means into the cache, check every file's hash, and say where it is.

    Files that are there already are checked, not fetched, unless `force`. Bars go to stderr where
    that is a terminal, unless `progress` is False. Under HF_HUB_OFFLINE the cache's answer is
    final, and nothing is checked. Raises `ModelNotFoundError` or `DownloadError`.
    """
    name = parse_hub_name(text)
    if is_offline():
        path = None if force else find_hub_model(text)
        if path is None:
            raise offline(name)
        return HubModel(str(name), path, size_of(path))
    listing = _list_repository(name)
    try:
        with _bars(progress):
            file = _chosen_file(name, listing.files)
            if file is None:
                return _pull_folder(name, listing, force=force)
            _require_space(name, listing, [file], force=force)
            path = _fetch(name, listing, file, force=force)
            return HubModel(str(name.choosing(file.path)), path, file.num_bytes)
    except OSError as error:
        raise cannot_store(name, error) from error


def _chosen_file(name: HubName, files: Sequence[HubFile]) -> HubFile | None:
    """Return the one .gguf that the name means, or None where it means a folder."""
    choices = matching(name, files)
    if len(choices) > 1:
        raise ModelNotFoundError(ambiguity(name, files, "in the repository"))
    if choices:
        if choices[0].num_parts > 1:
            raise ModelNotFoundError(_split(name, choices[0].num_parts, files))
        return next(file for file in files if file.path == choices[0].path)
    if name.choice not in (None, FOLDER):
        raise ModelNotFoundError(_no_such_choice(name, files))
    return None


def _pull_folder(name: HubName, listing: _Listing, *, force: bool) -> HubModel:
    """Fetch a safetensors model file by file, the index of shards first."""
    files = folder_files(name, listing.files, lambda file: _fetch(name, listing, file, force=force))
    _require_space(name, listing, files, force=force)
    paths = [_fetch(name, listing, file, force=force) for file in files]
    mixed = matching(name.choosing(None), listing.files)
    canonical = name.choosing(FOLDER if mixed else None)
    return HubModel(str(canonical), paths[0].parent, sum(file.num_bytes for file in files))


def _list_repository(name: HubName) -> _Listing:
    """Ask the hub what the repository holds, with sizes and hashes."""
    with translated(name):
        from huggingface_hub import HfApi

        api = HfApi(library_name=_LIBRARY)
        info = api.model_info(name.repo, revision=name.revision, files_metadata=True)
    if info.sha is None or info.siblings is None:
        raise DownloadError(
            f"{name} cannot be pulled: {api.endpoint} does not say what it holds; check HF_ENDPOINT"
        )
    files = [
        HubFile(
            sibling.rfilename,
            sibling.size or 0,
            sibling.blob_id if sibling.lfs is None else sibling.lfs.sha256,
        )
        for sibling in info.siblings
        if sibling.rfilename.isprintable()
    ]
    return _Listing(info.sha, files)


def _fetch(name: HubName, listing: _Listing, file: HubFile, *, force: bool) -> Path:
    """Return a file's path in the cache, fetched unless it is there, its hash checked."""
    was_here = not force and _is_here(name, listing, file)
    path = _download(name, listing, file, force=force)
    found = _digest(path, file)
    if found != file.digest and was_here:
        _log.warning("%s is damaged (its hash differs): fetching it again", path)
        path = _download(name, listing, file, force=True)
        found = _digest(path, file)
    if found != file.digest:
        # Others trust this cache without looking.
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise DownloadError(
            f"{file.path} of {name} has hash {found} where the hub says {file.digest}: the "
            "transfer damaged it, or a proxy or mirror serves another file. It was removed; pull "
            "again, and check HF_ENDPOINT if it is set"
        )
    return path


def _download(name: HubName, listing: _Listing, file: HubFile, *, force: bool) -> Path:
    """Have huggingface_hub put one file into the cache."""
    with translated(name):
        from huggingface_hub import hf_hub_download

        path = Path(
            hf_hub_download(
                name.repo,
                file.path,
                # By name, not by commit, so that the cache learns what the name means.
                revision=name.revision,
                force_download=force,
                library_name=_LIBRARY,
            )
        )
    commit = path.parents[file.path.count("/")].name
    if commit != listing.commit:
        raise DownloadError(
            f"{name} is at commit {listing.commit} and {file.path} came from {commit}: the "
            "repository changed meanwhile, or could not be reached any more; pull again"
        )
    return path


def _digest(path: Path, file: HubFile) -> str | None:
    """Return a file's hash of the kind that the hub has for it, or None where it has none."""
    if file.digest is None:
        _log.warning("the hub states no hash of %s: it is taken unchecked", file.path)
        return None
    if len(file.digest) == _SHA256_LENGTH:
        with path.open("rb") as source:
            return hashlib.file_digest(source, "sha256").hexdigest()
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _require_space(
    name: HubName, listing: _Listing, files: Sequence[HubFile], *, force: bool
) -> None:
    """Refuse to begin where the disk would fill."""
    needed = sum(file.num_bytes for file in files if force or not _is_here(name, listing, file))
    cache = cache_folder()
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise DownloadError(
            f"{name} needs {format_bytes(needed)} more and {cache} has {format_bytes(free)} free; "
            "free some, or set HF_HUB_CACHE to a folder on another disk"
        )


def _is_here(name: HubName, listing: _Listing, file: HubFile) -> bool:
    """Tell whether the cache has the file, under this commit or another."""
    folder = repository_folder(name)
    if (folder / "snapshots" / listing.commit / file.path).exists():
        return True
    return file.digest is not None and (folder / "blobs" / file.digest).exists()


@contextmanager
def _bars(progress: bool | None) -> Iterator[None]:
    """Silence huggingface_hub's progress bars if asked to; they know a terminal by themselves."""
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    # Set either way, HF_HUB_DISABLE_PROGRESS_BARS wins, and switching only warns.
    fixed = constants.HF_HUB_DISABLE_PROGRESS_BARS is not None
    if progress is not False or fixed or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _no_such_choice(name: HubName, files: Sequence[HubFile]) -> str:
    """Say that a quant or file is not in the repository, and what is."""
    problem = f"{name.choosing(None)} has no {name.choice}"
    offered = choices_text(name, files)
    if offered:
        return f"{problem}; it has:\n{offered}"
    return f"{problem}, nor any other .gguf model; try {name.choosing(None)} alone"


def _split(name: HubName, num_parts: int, files: Sequence[HubFile]) -> str:
    """Say that a model in several .gguf files cannot be used."""
    return (
        f"{name} is a .gguf split in {num_parts} parts, which Octavo does not read yet; join them "
        "with llama.cpp's 'llama-gguf-split --merge' and give the file's path, or take another:"
        f"\n{choices_text(name, files)}"
    )
