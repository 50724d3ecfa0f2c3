"""From pieces and finished outputs to the bodies of OpenAI's responses.

Beside OpenAI's fields there are ``stop_reason``, ``prompt_logprobs`` and the token ids, as vLLM has
them, and ``seed``, by which the same answer can be had again.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from octavo.openai.chunks import ChunkMaker, finite, whole_deltas

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from octavo.engine.outputs import RequestOutput
    from octavo.errors import OctavoError
    from octavo.model.text.tokenizer import Tokenizer
    from octavo.openai.chunks import Piece
    from octavo.openai.request import ParsedBody


class Fold:
    """The choices of a whole answer, made of its pieces in whatever order they come."""

    def __init__(self, num_choices: int, *, chat: bool) -> None:
        self._chat = chat
        self.choices: list[dict[str, Any]] = [self._empty(index) for index in range(num_choices)]

    def add(self, pieces: Iterable[Piece]) -> None:
        """Take in pieces."""
        for piece in pieces:
            choice = self.choices[piece["index"]]
            if self._chat:
                _add_to_message(choice["message"], piece["delta"])
            else:
                choice["text"] += piece["text"]
            if piece["logprobs"] is not None:
                choice["logprobs"] = _joined(choice["logprobs"], piece["logprobs"])
            if piece["finish_reason"] is not None:
                choice["finish_reason"] = piece["finish_reason"]
                choice["stop_reason"] = piece["stop_reason"]
            if "token_ids" in piece:
                choice.setdefault("token_ids", []).extend(piece["token_ids"])
            if "prompt_token_ids" in piece:
                choice["prompt_token_ids"] = piece["prompt_token_ids"]

    def _empty(self, index: int) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": "", "refusal": None}
        else:
            choice["text"] = ""
        return {**choice, "logprobs": None, "finish_reason": None, "stop_reason": None}


def _add_to_message(message: dict[str, Any], delta: dict[str, Any]) -> None:
    """Add a chunk's delta. An answer that is nothing but calls has null for its content."""
    message["content"] = (message["content"] or "") + delta.get("content", "")
    if "reasoning_content" in delta:
        before = message.get("reasoning_content", "")
        message["reasoning_content"] = before + delta["reasoning_content"]
    for call in delta.get("tool_calls", ()):
        calls = message.setdefault("tool_calls", [])
        if "id" in call:
            whole = {name: value for name, value in call.items() if name != "index"}
            calls.append({**whole, "function": dict(call["function"])})
        else:
            function = calls[call["index"]]["function"]
            function["arguments"] += call["function"]["arguments"]
    if "tool_calls" in message:
        message["content"] = message["content"] or None


def _joined(before: dict[str, Any] | None, more: dict[str, Any]) -> dict[str, Any]:
    if before is None:
        return dict(more)
    return {
        name: values if more[name] is None else [*values, *more[name]] if values else more[name]
        for name, values in before.items()
    }


def whole_body(
    outputs: Sequence[RequestOutput],
    choices: list[dict[str, Any]],
    asked: ParsedBody,
    *,
    chat: bool,
    model: str,
    response_id: str,
    created: int,
) -> dict[str, Any]:
    """Return a chat.completion or a text_completion; ``outputs`` are finished, a prompt each."""
    body: dict[str, Any] = {
        "id": response_id,
        "object": "chat.completion" if chat else "text_completion",
        "created": created,
        "model": model,
        "choices": choices,
        "usage": usage(outputs),
        "seed": outputs[0].seed,
    }
    num_top = asked.prompt_logprobs
    if num_top is not None and chat:
        body["prompt_logprobs"] = _prompt_logprobs(outputs[0], num_top)
    elif num_top is not None:
        for i, output in enumerate(outputs):
            for choice in choices[i * asked.params.n : (i + 1) * asked.params.n]:
                choice["prompt_logprobs"] = _prompt_logprobs(output, num_top)
    if asked.return_token_ids and chat:
        body["prompt_token_ids"] = outputs[0].prompt_token_ids
    return body


def finished_body(
    outputs: Sequence[RequestOutput],
    asked: ParsedBody,
    tokenizer: Tokenizer,
    *,
    chat: bool,
    model: str,
) -> dict[str, Any]:
    """Return the body of outputs that are finished already."""
    fold = Fold(asked.params.n * len(outputs), chat=chat)
    for i, output in enumerate(outputs):
        maker = ChunkMaker(asked, tokenizer, chat=chat, prompt=i)
        fold.add(maker.pieces(output, whole_deltas(output)))
    return whole_body(
        outputs,
        fold.choices,
        asked,
        chat=chat,
        model=model,
        response_id=new_id(chat=chat),
        created=int(time.time()),
    )


def new_id(*, chat: bool, name: str = "") -> str:
    """Return the id of a response; ``name`` is the client's own."""
    return f"{'chatcmpl' if chat else 'cmpl'}-{name or uuid.uuid4().hex}"


def usage(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """Return what outputs have cost so far."""
    num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
    num_completion = sum(len(choice.token_ids) for output in outputs for choice in output.outputs)
    return usage_of(num_prompt, num_completion, sum(output.num_cached_tokens for output in outputs))


def usage_of(num_prompt: int, num_completion: int, num_cached: int) -> dict[str, Any]:
    """Return OpenAI's form of so many tokens; ``num_cached`` of the prompts' were in the cache."""
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }


def error_body(error: OctavoError) -> dict[str, Any]:
    """Return OpenAI's form of an error."""
    return {
        "error": {
            "message": str(error),
            "type": "invalid_request_error" if error.http_status < 500 else "server_error",
            "param": getattr(error, "param", None),
            "code": error.code,
        }
    }


def _prompt_logprobs(output: RequestOutput, num_top: int) -> list[dict[str, Any] | None]:
    """Return an entry a prompt token, by token id as a string, as vLLM does; the first is None.

    An entry has the token itself and the ``num_top`` likeliest, of which it may be one.
    """
    entries: list[dict[str, Any] | None] = []
    for position in output.prompt_logprobs or ():
        if position is None:
            entries.append(None)
            continue
        (own, *others) = position
        others = others[: num_top - (position[own].rank <= num_top)] if num_top else []
        entries.append(
            {
                str(token_id): {
                    "logprob": finite(logprob.logprob),
                    "rank": logprob.rank,
                    "decoded_token": logprob.decoded_token,
                }
                for token_id, logprob in ((key, position[key]) for key in (own, *others))
            }
        )
    return entries
