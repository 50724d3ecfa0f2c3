"""Says what a failure inside huggingface_hub means, and what to do about it.

Its calls raise its own types, those of whichever HTTP client its version uses, plain `OSError` and
`RuntimeError`; none of them leaves `translated`.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from octavo.errors import DownloadError, ModelError, ModelNotFoundError, OctavoError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from octavo.model.remote.hub_name import HubName

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def translated(name: HubName) -> Iterator[None]:
    """Turn whatever huggingface_hub raises here into a `ModelError`.

    Put nothing inside but calls of huggingface_hub: a bug of ours would look like its failure.
    """
    try:
        yield
    except OctavoError:
        raise
    except Exception as error:
        raise _meaning(name, error) from error


def needs_package(error: ImportError) -> DownloadError:
    """Return the error for a machine without huggingface_hub."""
    return DownloadError(
        f"models of the Hugging Face Hub need the package huggingface_hub, which cannot be "
        f"imported ({error}); add it with: pip install 'octavo[hf]'"
    )


def offline(name: HubName) -> DownloadError:
    """Return the error for a model that is not here while the network is forbidden."""
    return DownloadError(
        f"{name} is not in the cache, and HF_HUB_OFFLINE forbids fetching it; unset "
        "HF_HUB_OFFLINE (and TRANSFORMERS_OFFLINE), or set HF_HUB_CACHE to the cache that has it"
    )


def cannot_store(name: HubName, error: OSError) -> DownloadError:
    """Return the error for a cache that cannot be written or read."""
    from huggingface_hub import constants

    reason = error.strerror or str(error)
    return DownloadError(
        f"{name} could not be stored in {constants.HF_HUB_CACHE}: {reason}. Free some space or "
        "make the folder writable, or set HF_HUB_CACHE to another folder"
    )


def _meaning(name: HubName, error: BaseException) -> ModelError:
    """Return our error for one of theirs."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.OfflineModeIsEnabled):
        return offline(name)
    if isinstance(error, errors.GatedRepoError):
        return DownloadError(
            f"{name} is gated: accept its terms at {constants.ENDPOINT}/{name.repo} with your "
            f"account, then pull again with a token of that account ({_token_text()})"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelNotFoundError(
            f"{constants.ENDPOINT} has no repository {name.repo}, or it is private; check the "
            f"spelling, or use a token that may read it ({_token_text()})"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelNotFoundError(
            f"{name.repo} has no revision {name.revision or 'main'}; see "
            f"{constants.ENDPOINT}/{name.repo}/branches, or leave @revision out"
        )
    if error.__cause__ and (isinstance(error, errors.LocalEntryNotFoundError) or _is_forced(error)):
        return _meaning(name, error.__cause__)  # asking for the file failed; here is why
    if isinstance(error, errors.LocalEntryNotFoundError):
        return _unreachable(name, error)
    if isinstance(error, errors.EntryNotFoundError):
        return ModelNotFoundError(
            f"a file of {name} went away while it was pulled; pull again to see what there is now"
        )
    if isinstance(error, errors.HfHubHTTPError):
        return _refused(name, error, error.response.status_code)
    if isinstance(error, errors.HFValidationError):
        return ModelNotFoundError(f"{name} is not a name of the Hugging Face Hub: {error}")
    if isinstance(error, OSError) and (error.filename is not None or error.errno in _FULL):
        return cannot_store(name, error)
    return _unreachable(name, error)


def _refused(name: HubName, error: BaseException, status: int) -> ModelError:
    """Return the error for an answer that is an HTTP status."""
    from huggingface_hub import constants

    if status in (401, 403):
        return DownloadError(
            f"{constants.ENDPOINT} refuses access to {name} (HTTP {status}): if the model is "
            f"gated, accept its terms at {constants.ENDPOINT}/{name.repo}; use a token that may "
            f"read it ({_token_text()})"
        )
    if status == 404:
        return ModelNotFoundError(
            f"{constants.ENDPOINT} knows no {name.repo} (HTTP 404); check the spelling, and "
            "HF_ENDPOINT if it is set"
        )
    advice = {
        429: "too many requests: wait some minutes, or set HF_TOKEN for a higher limit",
        416: "the file changed while it was pulled: pull again",
    }.get(status, "try again later")
    return DownloadError(
        f"{name} could not be pulled: {constants.ENDPOINT} answered HTTP {status}; {advice} "
        f"({_first_line(error)})"
    )


def _unreachable(name: HubName, error: BaseException) -> DownloadError:
    """Return the error for a connection that failed or broke."""
    from huggingface_hub import constants

    return DownloadError(
        f"{name} could not be pulled from {constants.ENDPOINT}: {_first_line(error)}. Check the "
        "network, the proxy settings and HF_ENDPOINT, and pull again: files that came whole are "
        "kept"
    )


def _is_forced(error: BaseException) -> bool:
    """Tell whether this is how a forced download reports that it could not begin."""
    return type(error) is ValueError and "orce" in str(error)


def _token_text() -> str:
    """Say whether a token was sent."""
    from huggingface_hub import get_token

    if get_token() is None:
        return "none is set: set HF_TOKEN, or run 'hf auth login'"
    return "the one in HF_TOKEN or from 'hf auth login' was sent and did not suffice"


def _first_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
