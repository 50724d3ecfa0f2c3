"""`/tokenize` and `/detokenize`: the ids that a request would really have, and their text."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from octavo.errors import InvalidRequestError, shown
from octavo.openai.request import read_prompt
from octavo.server.bodies import json_response, read_object
from octavo.server.schemas import DETOKENIZE, TOKENIZE, documented
from octavo.server.state import state_of

if TYPE_CHECKING:
    from octavo.server.state import ServerState

router = APIRouter(tags=["Tokens"])


@router.post("/tokenize", **documented(TOKENIZE))
async def tokenize(request: Request) -> Response:
    """Return the token ids of a text (`prompt`) or of a conversation (`messages`)."""
    state = state_of(request)
    state.check_key(request)
    body = await read_object(request)
    return json_response(await asyncio.to_thread(_tokenize, body, state))


def _tokenize(body: dict[str, Any], state: ServerState) -> dict[str, Any]:
    llm = state.engine.llm
    ids = read_prompt(body, llm, names=state.names)
    answer: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": llm.core.max_model_len,
        "tokens": ids,
    }
    wanted = body.get("return_token_strs")
    if wanted is not None and not isinstance(wanted, bool):
        raise InvalidRequestError(
            f"return_token_strs={shown(wanted)} must be true or false", param="return_token_strs"
        )
    if wanted:
        answer["token_strs"] = [
            llm.tokenizer.decode((token_id,), skip_special_tokens=False) for token_id in ids
        ]
    return answer


@router.post("/detokenize", **documented(DETOKENIZE))
async def detokenize(request: Request) -> Response:
    """Return the text of token ids, special tokens included."""
    state = state_of(request)
    state.check_key(request)
    body = await read_object(request)
    return json_response(await asyncio.to_thread(_detokenize, body, state))


def _detokenize(body: dict[str, Any], state: ServerState) -> dict[str, Any]:
    tokenizer = state.engine.llm.tokenizer
    size = state.engine.llm.core.backend.spec.vocab_size
    ids = body.get("tokens")
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < size for i in ids):
        raise InvalidRequestError(
            f"tokens={shown(ids)} must be a list of token ids from 0 to {size - 1}", param="tokens"
        )
    return {"prompt": tokenizer.decode(ids, skip_special_tokens=False)}
