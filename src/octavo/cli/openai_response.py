"""From finished outputs to the bodies of OpenAI's responses.

Beside OpenAI's fields there are ``stop_reason`` and ``prompt_logprobs``, as vLLM has them, and
``seed``, by which the same answer can be had again.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from octavo.engine.outputs import CompletionOutput, Logprob, RequestOutput
    from octavo.errors import OctavoError
    from octavo.model.text.tokenizer import Tokenizer
    from octavo.sampling.params import SamplingParams


def chat_body(
    output: RequestOutput, params: SamplingParams, model: str, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return a chat.completion."""
    choices = [
        {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": _chat_logprobs(choice, params.logprobs, tokenizer),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        for choice in output.outputs
    ]
    body = _body("chat.completion", "chatcmpl", [output], choices, model)
    if output.prompt_logprobs is not None:
        body["prompt_logprobs"] = _prompt_logprobs(output)
    return body


def completion_body(
    outputs: Sequence[RequestOutput], params: SamplingParams, model: str
) -> dict[str, Any]:
    """Return a text_completion: the choices of each prompt in turn."""
    choices: list[dict[str, Any]] = []
    for output in outputs:
        for choice in output.outputs:
            entry = {
                "index": len(choices),
                "text": choice.text,
                "logprobs": _completion_logprobs(choice, params.logprobs),
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
            }
            if output.prompt_logprobs is not None:
                entry["prompt_logprobs"] = _prompt_logprobs(output)
            choices.append(entry)
    return _body("text_completion", "cmpl", outputs, choices, model)


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


def _body(
    kind: str,
    prefix: str,
    outputs: Sequence[RequestOutput],
    choices: list[dict[str, Any]],
    model: str,
) -> dict[str, Any]:
    num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
    num_completion = sum(len(choice.token_ids) for output in outputs for choice in output.outputs)
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_completion,
            "total_tokens": num_prompt + num_completion,
            "prompt_tokens_details": {
                "cached_tokens": sum(output.num_cached_tokens for output in outputs)
            },
        },
        "seed": outputs[0].seed,
    }


def _chat_logprobs(
    choice: CompletionOutput, num_top: int | None, tokenizer: Tokenizer
) -> dict[str, Any] | None:
    if choice.logprobs is None or num_top is None:
        return None

    def entry(token_id: int, logprob: Logprob) -> dict[str, Any]:
        return {
            "token": logprob.decoded_token,
            "logprob": logprob.logprob,
            "bytes": list(tokenizer.token_bytes(token_id)),
        }

    content = []
    for token_id, position in zip(choice.token_ids, choice.logprobs, strict=True):
        top = [entry(other, position[other]) for other in _likeliest(position, num_top)]
        content.append({**entry(token_id, position[token_id]), "top_logprobs": top})
    return {"content": content, "refusal": None}


def _completion_logprobs(choice: CompletionOutput, num_top: int | None) -> dict[str, Any] | None:
    if choice.logprobs is None or num_top is None:
        return None
    tokens, values, tops, offsets = [], [], [], []
    offset = 0
    for token_id, position in zip(choice.token_ids, choice.logprobs, strict=True):
        chosen = position[token_id]
        tokens.append(chosen.decoded_token)
        values.append(chosen.logprob)
        likeliest = (position[other] for other in _likeliest(position, num_top))
        tops.append({logprob.decoded_token: logprob.logprob for logprob in likeliest})
        offsets.append(offset)
        offset += len(chosen.decoded_token)
    return {
        "tokens": tokens,
        "token_logprobs": values,
        "top_logprobs": tops if num_top else None,
        "text_offset": offsets,
    }


def _likeliest(position: dict[int, Logprob], count: int) -> list[int]:
    """Return the ids of the ``count`` likeliest tokens: the chosen one is there beside them."""
    return sorted(position, key=lambda token_id: position[token_id].rank)[:count]


def _prompt_logprobs(output: RequestOutput) -> list[dict[str, Any] | None]:
    """Return an entry a prompt token, by token id as a string, as vLLM does; the first is None."""
    entries: list[dict[str, Any] | None] = []
    for position in output.prompt_logprobs or ():
        if position is None:
            entries.append(None)
            continue
        entries.append(
            {
                str(token_id): {
                    "logprob": logprob.logprob,
                    "rank": logprob.rank,
                    "decoded_token": logprob.decoded_token,
                }
                for token_id, logprob in position.items()
            }
        )
    return entries
