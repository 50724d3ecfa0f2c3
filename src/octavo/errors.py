"""The exceptions of Octavo, one tree; each class knows its HTTP status and its OpenAI error code.

    OctavoError
    ├── InvalidRequestError (ValueError)      a request that cannot be served as asked
    │   ├── ContextLengthError                it does not fit the context or the cache
    │   ├── UnknownModelError                 it names another model than the one that answers
    │   ├── BodyTooLargeError                 its body is longer than a server reads
    │   ├── WrongPathError                    a server has no such path, or not for the method
    │   └── ChatTemplateError                 the model's own template refused the messages
    ├── ConfigError (ValueError)              a setting that cannot be honoured
    │   └── PolicyError                       a user's eviction policy failed or broke its contract
    ├── ModelError                            a model that cannot be had or opened
    │   ├── ModelNotFoundError                no such model here, and none known by that name
    │   ├── DownloadError                     the model could not be fetched
    │   └── ModelFileError                    the file is malformed or not supported
    ├── ThreadError (RuntimeError)            an engine that another thread is using
    ├── QueueFullError                        a server has as many requests waiting as it may
    ├── DrainingError                         a server that takes no more requests
    ├── AuthenticationError                   a server's API key is missing or wrong
    ├── EngineFaultError                      a step failed; a bug, and the server goes on
    ├── TraceError (ValueError)               a recorded trace that cannot be read or replayed
    └── InvariantError                        the accounts of the cache do not add up: our bug

Every message names the value, the limit and the remedy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import os

_MOST_SHOWN = 80  # characters of a value
_MOST_TOLD = 300  # of another's exception


class OctavoError(Exception):
    """Base of every error that Octavo raises on purpose."""

    http_status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"


class InvalidRequestError(OctavoError, ValueError):
    """A request was refused before it entered the engine.

    ``param`` is the name of the offending field, or None where no single field is at fault.
    """

    http_status = 400
    code = "invalid_value"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(InvalidRequestError):
    """A request needs more tokens than the context or the cache can hold."""

    code = "context_length_exceeded"


class UnknownModelError(InvalidRequestError):
    """A request names a model that is not the one that answers."""

    http_status = 404
    code = "model_not_found"


class SlowBodyError(InvalidRequestError):
    """The request's body did not come in time."""

    http_status = 408
    code = "request_timeout"


class BodyTooLargeError(InvalidRequestError):
    """A body is longer than the server reads."""

    http_status = 413
    code = "body_too_large"


class WrongPathError(InvalidRequestError):
    """A path that is not there, or one that does not take the method."""

    code = "wrong_path"


class ChatTemplateError(InvalidRequestError):
    """The model's chat template refused the messages, or is itself at fault."""

    code = "invalid_messages"


class ConfigError(OctavoError, ValueError):
    """A setting is out of range, unknown, or contradicts another.

    ``param`` is the name of the setting, or None where no single one is at fault.
    """

    code = "invalid_config"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PolicyError(ConfigError):
    """An eviction policy from outside raised an exception, or broke its contract."""

    code = "eviction_policy_failed"

    def __init__(self, message: str) -> None:
        super().__init__(message, param="eviction_policy")


class ModelError(OctavoError):
    """A model cannot be had or opened."""

    code = "model_error"


class ModelNotFoundError(ModelError):
    """No model of that name is known, and no file lies at that path."""

    http_status = 404
    code = "model_not_found"


class DownloadError(ModelError):
    """A model could not be fetched, or what came was not what was expected."""

    code = "download_failed"


class ModelFileError(ModelError):
    """A model file is malformed, truncated, or uses something that is not supported.

    ``path`` is the file, ``offset`` the byte at which the fault was found (None where the fault
    has no single place, such as a missing key).
    """

    code = "bad_model_file"

    def __init__(
        self, message: str, *, path: str | os.PathLike[str] | None = None, offset: int | None = None
    ) -> None:
        where = "" if path is None else f"{path}: "
        place = "" if offset is None else f" (at byte {offset})"
        super().__init__(f"{where}{message}{place}")
        self.path = path
        self.offset = offset


class ThreadError(OctavoError, RuntimeError):
    """A thread called an engine while another thread was in it; nothing has changed there."""

    code = "engine_in_use"


class QueueFullError(OctavoError):
    """A server holds as many waiting requests as it may; try again after ``retry_after`` s."""

    http_status = 429
    code = "queue_full"
    retry_after: ClassVar[int] = 1


class DrainingError(OctavoError):
    """The server finishes what it has and takes no more."""

    http_status = 503
    code = "draining"


class AuthenticationError(OctavoError):
    """The API key is missing or wrong."""

    http_status = 401
    code = "invalid_api_key"


class EngineFaultError(OctavoError):
    """A step raised an exception: the requests in it have ended, whoever asked."""

    code = "engine_fault"


class TraceError(OctavoError, ValueError):
    """A trace file is malformed, or is not of a kind that can be replayed."""

    code = "bad_trace"


class InvariantError(OctavoError):
    """The accounts of the cache do not add up; a bug of Octavo, never the user's fault."""

    code = "invariant_violated"


def shown(value: object) -> str:
    """Return ``value`` as a message shows it: its repr, cut where that is long."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."


def in_one_line(error: BaseException) -> str:
    """Return the type and the text of somebody else's exception, for a message of ours."""
    words = " ".join(str(error).split())
    text = f"{type(error).__name__}: {words}" if words else repr(error)
    return text if len(text) <= _MOST_TOLD else text[: _MOST_TOLD - 3] + "..."
