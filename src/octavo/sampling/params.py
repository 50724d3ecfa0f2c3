"""What a user may ask of the choice of tokens: vLLM's names, meanings and defaults, checked here.

Must not know of models, tokenizers or arrays. What depends on the vocabulary is checked by
`SamplingParams.validate_for`, once a model is known.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, cast

from octavo.errors import InvalidRequestError, shown
from octavo.sampling.structured import StructuredOutputs, read_structured_outputs

GREEDY_BELOW = 1e-5  # temperatures under this one mean greedy, as in vLLM
MAX_CHOICES = 128
MAX_LOGPROBS = 20  # OpenAI's and vLLM's own limit
MAX_STRINGS = 300  # as many as OpenAI takes biases; each token is held against all of them
MAX_STRING_LENGTH = 1000  # characters
MAX_BIAS = 100.0  # larger finite biases are clamped to it, as in vLLM


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen, and when they end.

    Values are normalised at construction (lists become tuples, NumPy scalars Python's own), so
    that equal requests compare equal and ``SamplingParams(**asdict(params)) == params``, also by
    way of JSON. Whatever is out of range, and any unknown name, raises
    `InvalidRequestError`, a ``ValueError`` whose ``param`` is the field's name.

    Attributes:
        n: how many answers (choices) to give; 1 to 128. With greedy decoding they are all equal:
            wasteful and harmless, so it is allowed (OpenAI allows it, vLLM does not).
        temperature: divides the logits; 0, and anything below 1e-5, takes the likeliest token.
        top_p: keep the likeliest tokens whose probabilities reach this sum; in (0, 1], 1 is off.
        top_k: keep this many of the likeliest tokens; 0 and -1 are off, more than the vocabulary
            is the whole of it.
        min_p: keep tokens at least this fraction as likely as the likeliest; in [0, 1], 0 is off.
        seed: the key of all randomness; -2**63 to 2**64 - 1, taken modulo 2**64. None: the engine
            draws one and returns it.
        max_tokens: most tokens to generate; 0 generates none, None is up to the context's end.
        min_tokens: this many tokens come before an end token or a stop string can end the answer.
        stop: one string or several that end the answer; left out of it unless
            `include_stop_str_in_output`. Read them by `stop_strings`.
        stop_token_ids: further tokens that end the answer.
        ignore_eos: the model's own end token does not end the answer.
        repetition_penalty: logits of tokens seen in prompt or answer are divided by it where
            positive, multiplied where not; 0.001 to 1000, 1 is off.
        frequency_penalty: taken off a logit once per occurrence in the answer; -2 to 2.
        presence_penalty: taken off the logits of all tokens that occur in the answer; -2 to 2.
        logit_bias: token id to what is added to its logit, clamped to -100 to 100.
        bad_words: strings that are never completed.
        allowed_token_ids: if given, only these can be chosen.
        logprobs: return the chosen token's logprob and this many of the likeliest; 0 to 20.
        prompt_logprobs: the same for the tokens of the prompt.
        skip_special_tokens: leave special tokens out of the text.
        structured_outputs: the shape of the answer, as `StructuredOutputs` or a mapping of its
            fields. Read it by `shape`.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None
    include_stop_str_in_output: bool = False
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    # Left out of the hash (a dict has none), not out of the comparison.
    logit_bias: Mapping[int, float] | None = dataclasses.field(default=None, hash=False)
    bad_words: Sequence[str] | None = None
    allowed_token_ids: Sequence[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputs | Mapping[str, Any] | None = None

    # Type checkers read the generated __init__ and so know every name; this one only turns an
    # unknown name into our error before __init__ makes a TypeError of it. (`super()` would not do:
    # slots=True builds the class anew.)
    def __new__(cls, *_: object, **values: object) -> Self:
        """Refuse unknown names."""
        for name in values.keys() - cls.__dataclass_fields__.keys():
            raise InvalidRequestError(_unknown(name, cls.__dataclass_fields__), param=name)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        """Normalise and check every field."""
        self._set("n", _int("n", self.n, 1, MAX_CHOICES))
        self._set("temperature", _float("temperature", self.temperature, low=0.0))
        self._set("top_p", _float("top_p", self.top_p, low=0.0, high=1.0, above=True))
        # -1 is off, as 0 is. No vocabulary has more than 32 bits count, and kernels hold no more.
        self._set("top_k", min(max(0, _int("top_k", self.top_k, -1)), 2**31 - 1))
        self._set("min_p", _float("min_p", self.min_p, low=0.0, high=1.0))
        self._set(
            "repetition_penalty",
            _float("repetition_penalty", self.repetition_penalty, low=1e-3, high=1e3),
        )
        for name in ("frequency_penalty", "presence_penalty"):
            self._set(name, _float(name, getattr(self, name), low=-2.0, high=2.0))
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            _check_bool(name, getattr(self, name))
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._set(name, _int(name, getattr(self, name), 0, MAX_LOGPROBS))
        if self.seed is not None:
            self._set("seed", _int("seed", self.seed, -(2**63), 2**64 - 1) % 2**64)
        self._set("structured_outputs", read_structured_outputs(self.structured_outputs))
        self._normalise_lengths()
        self._normalise_lists()

    def _normalise_lengths(self) -> None:
        self._set("min_tokens", _int("min_tokens", self.min_tokens, 0))
        if self.max_tokens is None:
            return
        self._set("max_tokens", _int("max_tokens", self.max_tokens, 0))
        if self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}; "
                "lower min_tokens or raise max_tokens",
                param="min_tokens",
            )

    def _normalise_lists(self) -> None:
        self._set("stop", _strings("stop", self.stop))
        self._set("bad_words", _strings("bad_words", self.bad_words))
        self._set("stop_token_ids", _ids("stop_token_ids", self.stop_token_ids) or ())
        self._set("allowed_token_ids", _ids("allowed_token_ids", self.allowed_token_ids))
        if self.allowed_token_ids == ():
            raise InvalidRequestError(
                "allowed_token_ids=[] allows no token at all; "
                "name at least 1 token id, or leave the field out to allow every token",
                param="allowed_token_ids",
            )
        if self.logit_bias is not None:
            self._set("logit_bias", _bias(self.logit_bias))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the only way in: the class is frozen

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken, with no randomness."""
        return self.temperature < GREEDY_BELOW

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings as a tuple, whichever way they were given."""
        return cast("tuple[str, ...]", self.stop)

    @property
    def shape(self) -> StructuredOutputs | None:
        """The shape of the answer, whichever way it was given."""
        return cast("StructuredOutputs | None", self.structured_outputs)

    def validate_for(self, vocab_size: int) -> None:
        """Check all token ids against a vocabulary of ``vocab_size`` tokens.

        Raises:
            InvalidRequestError: an id is not in 0 .. vocab_size - 1; ``param`` names the field.
        """
        fields: dict[str, Iterable[int]] = {
            "logit_bias": self.logit_bias or (),
            "allowed_token_ids": self.allowed_token_ids or (),
            "stop_token_ids": self.stop_token_ids or (),
        }
        for name, token_ids in fields.items():
            for token_id in token_ids:
                if not 0 <= token_id < vocab_size:
                    raise InvalidRequestError(
                        f"{name} has token id {token_id}, which this model's vocabulary of "
                        f"{vocab_size} tokens lacks; use ids from 0 to {vocab_size - 1}",
                        param=name,
                    )


def _unknown(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"the known ones are {', '.join(known)}"
    return f"{name!r} is not a sampling parameter; {hint}"


def _refuse(name: str, value: object, must: str, remedy: str = "") -> InvalidRequestError:
    return InvalidRequestError(
        f"{name}={shown(value)} must be {must}{remedy and '; ' + remedy}", param=name
    )


def _int(name: str, value: object, low: int, high: int | None = None) -> int:
    """Return ``value`` as a Python int in [low, high]; a bool is no int, a NumPy integer is one."""
    limit = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise _refuse(name, value, limit, f"not a {type(value).__name__}")
    number = int(value)
    if number < low:
        raise _refuse(name, value, limit, f"raise it to {low} or more")
    if high is not None and number > high:
        raise _refuse(name, value, limit, f"lower it to {high} or less")
    return number


def _float(
    name: str, value: object, *, low: float, high: float | None = None, above: bool = False
) -> float:
    """Return ``value`` as a finite Python float in [low, high], or (low, high] where ``above``."""
    limit = "a finite number "
    if high is None:
        limit += f"of at least {low:g}"
    else:
        limit += (
            f"{'above' if above else 'from'} {low:g} {'and at most' if above else 'to'} {high:g}"
        )
    number = _finite(name, value, limit)
    if number < low or (above and number == low):
        raise _refuse(name, value, limit, f"raise it {'above' if above else 'to at least'} {low:g}")
    if high is not None and number > high:
        raise _refuse(name, value, limit, f"lower it to {high:g} or less")
    return number


def _finite(name: str, value: object, limit: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise _refuse(name, value, limit, f"not a {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _refuse(name, value, limit, "NaN and infinity mean nothing here")
    return number


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _refuse(name, value, "true or false", f"not a {type(value).__name__}")


def _strings(name: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    strings = (value,) if isinstance(value, str) else value
    limit = "a string or a list of strings"
    if not isinstance(strings, Sequence) or isinstance(strings, bytes):
        raise _refuse(name, value, limit)
    if len(strings) > MAX_STRINGS:
        raise InvalidRequestError(
            f"{name} has {len(strings)} strings, and {MAX_STRINGS} are the most; leave some out",
            param=name,
        )
    for string in strings:
        if not isinstance(string, str):
            raise _refuse(name, value, limit, f"{string!r} is not a string")
        if len(string) > MAX_STRING_LENGTH:
            raise InvalidRequestError(
                f"{name} holds a string of {len(string)} characters, and {MAX_STRING_LENGTH} are "
                "the most; shorten it",
                param=name,
            )
        if not string:
            raise _refuse(
                name,
                value,
                limit,
                "none of them empty",
            )
    return tuple(strings)


def _ids(name: str, value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise _refuse(name, value, "a list of token ids")
    return tuple(_int(name, token_id, 0) for token_id in value)


def _bias(value: object) -> dict[int, float]:
    """Return the biases by int key (JSON knows only string keys), clamped to ±100."""
    limit = "a map from token ids to numbers"
    if not isinstance(value, Mapping):
        raise _refuse("logit_bias", value, limit)
    biases: dict[int, float] = {}
    for key, bias in value.items():
        try:
            token_id = int(key) if isinstance(key, str) else key
        except ValueError:
            raise _refuse("logit_bias", value, limit, f"key {key!r} is not a token id") from None
        if isinstance(token_id, bool) or not isinstance(token_id, numbers.Integral):
            raise _refuse("logit_bias", value, limit, f"key {key!r} is not a token id")
        number = _finite("logit_bias", bias, "a map from token ids to finite numbers")
        biases[int(token_id)] = min(MAX_BIAS, max(-MAX_BIAS, number))
    return biases
