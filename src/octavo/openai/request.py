"""From the body of an OpenAI request to prompts and sampling parameters.

OpenAI's fields where the engine has them, vLLM's extras by their own names. Null means the default.
Knows no file and no transport.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.errors import ContextLengthError, InvalidRequestError, UnknownModelError, shown
from octavo.model.text.tokenizer import check_utf8
from octavo.openai.chat import PLAIN, AnswerPlan, read_chat
from octavo.openai.honoured import check_honoured
from octavo.openai.shape import naming_shape, read_shape, shape_field
from octavo.sampling.params import MAX_LOGPROBS, SamplingParams

if TYPE_CHECKING:
    from octavo.engine.llm import LLM
    from octavo.sampling.structured import StructuredOutputs

# Where the two have other forms, or the answer another default.
_TRANSLATED = {"max_tokens", "logprobs", "structured_outputs"}
_AS_THEY_ARE = {field.name for field in dataclasses.fields(SamplingParams)} - _TRANSLATED
_DEFAULT_COMPLETION_TOKENS = 16
_MOST_BYTES_A_TOKEN = 256
"""Longer than any vocabulary's; so a text that cannot fit is refused before it is tokenised."""


@dataclass(frozen=True, slots=True)
class ParsedBody:
    """What a body asks for."""

    prompts: list[dict[str, Any]]
    """As `LLM.generate` takes them; each gives ``params.n`` choices."""
    params: SamplingParams
    texts: list[str | None]
    """The prompts' texts, where they were given as text."""
    priority: int = 0
    plan: AnswerPlan = PLAIN
    """What an answer to a chat may consist of."""
    stream: bool = False
    include_usage: bool = False
    """A last chunk says what the stream has cost."""
    continuous_usage: bool = False
    """Every chunk does."""
    echo: bool = False
    prompt_logprobs: int | None = None
    """How many were asked for by that name; an echo with logprobs may need more."""
    return_token_ids: bool = False
    timings: bool = False
    """What the request waited for, found in the cache and took is told with the answer."""


def parse_body(
    body: object,
    llm: LLM,
    *,
    chat: bool,
    seed: int | None,
    names: Sequence[str] = (),
    may_stream: bool = False,
) -> ParsedBody:
    """Read the body of a chat completion or of a completion.

    ``seed`` is for a body without one; ``names`` mean the model too. Raises `InvalidRequestError`
    for what cannot be served, by the name of the field; nothing has entered the engine.
    """
    if not isinstance(body, Mapping):
        raise InvalidRequestError("body must be an object", param="body")
    given = {name: value for name, value in body.items() if value is not None}
    check_honoured(given, chat=chat)
    _check_special_tokens(given, chat=chat)
    _check_model(given.get("model"), [*names, *model_names(llm)])
    stream = _streaming(given, may_stream=may_stream)
    echo = _bool(given, "echo", False)
    if echo and chat:
        raise InvalidRequestError(
            "echo=true is not supported for a chat; leave it out, or ask for a completion",
            param="echo",
        )
    params = _params(given, chat=chat, seed=seed, echo=echo)
    texts: list[str | None]
    plan = PLAIN
    if chat:
        prompt, plan = _chat_prompt(given, llm)
        prompts, texts = [prompt], [None]
    else:
        prompts, texts = _completion_prompts(given, llm)
    if "cache_salt" in given:
        prompts = [{**prompt, "cache_salt": given["cache_salt"]} for prompt in prompts]
    field = "messages" if chat else "prompt"

    def check(structure: StructuredOutputs) -> None:
        alone = dataclasses.replace(params, structured_outputs=structure)
        llm.check(prompts[0], alone, field=field)

    with naming_shape(shape_field(given)), plan.naming_tools(params.shape, check):
        params = plan.held_to(params, llm.tokenizer)
        for prompt in prompts:
            llm.check(prompt, params, field=field)
    priority = given.get("priority", 0)
    if type(priority) is not int:
        raise InvalidRequestError(
            f"priority={shown(priority)} must be a whole number", param="priority"
        )
    return ParsedBody(
        prompts,
        params,
        texts,
        priority,
        plan=plan,
        **stream,
        echo=echo,
        prompt_logprobs=given.get("prompt_logprobs"),
        return_token_ids=_bool(given, "return_token_ids", False),
        timings=_bool(given, "timings", False),
    )


def _params(
    given: Mapping[str, Any], *, chat: bool, seed: int | None, echo: bool
) -> SamplingParams:
    """Return how tokens are to be chosen; an echo with logprobs has the prompt's too."""
    options = {name: value for name, value in given.items() if name in _AS_THEY_ARE}
    if seed is not None:
        options.setdefault("seed", seed)
    options["structured_outputs"] = read_shape(given)
    options["max_tokens"] = _max_tokens(given, chat=chat)
    options["logprobs"] = _chat_logprobs(given) if chat else given.get("logprobs")
    params = SamplingParams(**options)
    if echo and params.logprobs is not None:
        most = max(params.logprobs, params.prompt_logprobs or 0)
        params = dataclasses.replace(params, prompt_logprobs=most)
    best_of = given.get("best_of", params.n)
    if best_of != params.n:
        raise InvalidRequestError(
            f"best_of={shown(best_of)} with n={params.n} is not supported; leave best_of out",
            param="best_of",
        )
    for word in params.bad_words or ():
        check_utf8(word, param="bad_words")
    return params


def read_prompt(body: Mapping[str, Any], llm: LLM, *, names: Sequence[str] = ()) -> list[int]:
    """Return the ids that a conversation (``messages``) or a text (``prompt``) would have.

    ``add_special_tokens`` false leaves out what begins a text. Raises `InvalidRequestError`.
    """
    given = {name: value for name, value in body.items() if value is not None}
    _check_model(given.get("model"), [*names, *model_names(llm)])
    if "messages" in given:
        ids: list[int] = _chat_prompt(given, llm)[0]["prompt_token_ids"]
        return ids
    text = given.get("prompt")
    if not isinstance(text, str):
        raise InvalidRequestError(
            f"prompt={shown(text)} must be a string; or give messages", param="prompt"
        )
    check_utf8(text, param="prompt")
    if _bool(given, "add_special_tokens", True):
        return llm.tokenizer.encode_prompt(text)
    return llm.tokenizer.encode(text)


def model_names(llm: LLM) -> list[str]:
    """Return the names that mean the model of ``llm``; the first is the one it was opened by."""
    from octavo.model.store import KNOWN_MODELS

    path = llm.model.path
    names = [llm.config.model, path.name, path.stem]
    names += [model.name for model in KNOWN_MODELS.values() if model.file_name == path.name]
    return list(dict.fromkeys(names))


def _check_model(name: object, names: Sequence[str]) -> None:
    if name is not None and name not in names:
        raise UnknownModelError(
            f"model={shown(name)} is not the model that answers here, which is {names[0]}; "
            "name that one, or leave the field out",
            param="model",
        )


def _check_special_tokens(given: Mapping[str, Any], *, chat: bool) -> None:
    """Refuse to add, or to leave out, what a prompt of this kind has or has not of itself."""
    if given.get("add_special_tokens", not chat) is not (not chat):
        raise InvalidRequestError(
            f"add_special_tokens={shown(given['add_special_tokens'])} is not supported: "
            + (
                "the chat template adds what the model needs"
                if chat
                else "a text begins as the tokenizer begins it; give token ids for other beginnings"
            ),
            param="add_special_tokens",
        )


def _streaming(given: Mapping[str, Any], *, may_stream: bool) -> dict[str, bool]:
    """Return what is asked of a stream, by the names of `ParsedBody`."""
    stream = _bool(given, "stream", False)
    if stream and not may_stream:
        raise InvalidRequestError(
            "stream=true is not supported here: a batch has whole answers", param="stream"
        )
    asked = given.get("stream_options")
    if asked is not None and not stream:
        raise InvalidRequestError(
            "stream_options needs stream=true; leave it out", param="stream_options"
        )
    if asked is not None and not isinstance(asked, Mapping):
        raise InvalidRequestError(
            f"stream_options={shown(asked)} must be an object", param="stream_options"
        )
    if stream and "prompt_logprobs" in given:
        raise InvalidRequestError(
            "prompt_logprobs does not come with stream=true; ask for the whole answer",
            param="prompt_logprobs",
        )
    asked = {name: value for name, value in (asked or {}).items() if value is not None}
    continuous = _bool(asked, "continuous_usage_stats", False)
    return {
        "stream": stream,
        "include_usage": _bool(asked, "include_usage", False),
        "continuous_usage": continuous and _bool(asked, "include_usage", False),
    }


def _max_tokens(given: Mapping[str, Any], *, chat: bool) -> Any:
    """Return the most tokens to generate, None for the rest of the context."""
    asked = [given[name] for name in ("max_tokens", "max_completion_tokens") if name in given]
    if len(asked) == 2 and asked[0] != asked[1]:
        raise InvalidRequestError(
            f"max_tokens={shown(asked[0])} and max_completion_tokens={shown(asked[1])} mean the "
            "same; give one of them",
            param="max_completion_tokens",
        )
    value = given.get("max_completion_tokens", 0)
    if type(value) is not int or value < 0:  # else the error would name max_tokens
        raise InvalidRequestError(
            f"max_completion_tokens={shown(value)} must be a whole number of at least 0",
            param="max_completion_tokens",
        )
    if asked:
        return asked[0]
    return None if chat else _DEFAULT_COMPLETION_TOKENS


def _chat_logprobs(given: Mapping[str, Any]) -> Any:
    """Return how many of the likeliest tokens to tell, None for no logprobs at all."""
    wanted = given.get("logprobs", False)
    if not isinstance(wanted, bool):
        raise InvalidRequestError(
            f"logprobs={shown(wanted)} must be true or false; top_logprobs says how many",
            param="logprobs",
        )
    count = given.get("top_logprobs")
    if not wanted:
        if count is not None:
            raise InvalidRequestError("top_logprobs needs logprobs=true", param="top_logprobs")
        return None
    if count is None:
        return 0
    if type(count) is not int or not 0 <= count <= MAX_LOGPROBS:
        raise InvalidRequestError(
            f"top_logprobs={shown(count)} must be a whole number from 0 to {MAX_LOGPROBS}",
            param="top_logprobs",
        )
    return count


def _chat_prompt(given: Mapping[str, Any], llm: LLM) -> tuple[dict[str, Any], AnswerPlan]:
    """Render the messages by the model's chat template; return what an answer may be too."""
    if "messages" not in given:
        raise InvalidRequestError("messages is missing", param="messages")
    _check_size(_texts(given["messages"]), llm, param="messages")
    continues = _bool(given, "continue_final_message", False)
    return read_chat(
        given,
        llm,
        add_generation_prompt=_bool(given, "add_generation_prompt", not continues),
        continues=continues,
    )


def _completion_prompts(
    given: Mapping[str, Any], llm: LLM
) -> tuple[list[dict[str, Any]], list[str | None]]:
    """Return the one prompt, a text or ids, or each of a list of them; and the texts."""
    prompt = given.get("prompt")
    items: list[Any] = []
    if isinstance(prompt, str):
        items = [prompt]
    elif isinstance(prompt, Sequence) and prompt:
        if all(type(item) is int for item in prompt):
            items = [prompt]
        elif all(isinstance(item, str) for item in prompt) or all(
            isinstance(item, list) and all(type(i) is int for i in item) for item in prompt
        ):
            items = list(prompt)
    if not items:
        raise InvalidRequestError(
            "prompt must be a string, a list of token ids, or a list of several such; none of "
            "them empty",
            param="prompt",
        )
    texts = [item if isinstance(item, str) else None for item in items]
    return [_as_ids(item, llm) for item in items], texts


def _as_ids(item: str | list[int], llm: LLM) -> dict[str, Any]:
    """Return a prompt as ids, so that checking it and adding it encode it once."""
    if isinstance(item, str):
        check_utf8(item, param="prompt")
        _check_size([item], llm, param="prompt")
        item = llm.tokenizer.encode_prompt(item)
    return {"prompt_token_ids": list(item)}


def _texts(messages: object) -> Iterator[str]:
    """Yield the texts of a conversation, whatever else it may be."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else [{"text": content}]:
            text = part.get("text") if isinstance(part, Mapping) else None
            if isinstance(text, str):
                yield text


def _check_size(texts: Iterable[str], llm: LLM, *, param: str) -> None:
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    most = llm.core.max_model_len * _MOST_BYTES_A_TOKEN
    if size > most:
        raise ContextLengthError(
            f"{param} has {size} bytes of text, more than the {most} that "
            f"{llm.core.max_model_len} tokens, which is max_model_len, could ever be; shorten it",
            param=param,
        )


def _bool(given: Mapping[str, Any], name: str, default: bool) -> bool:
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name}={shown(value)} must be true or false", param=name)
    return value
