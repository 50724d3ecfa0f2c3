"""From what came to a request's choices to the choices of OpenAI's chunks, one piece after another.

A stream sends the pieces; a whole answer is their fold (`response.py`). Logprobs are never
infinite: JSON has no such number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.engine.outputs import Delta

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from octavo.engine.outputs import Logprob, RequestOutput
    from octavo.model.text.tokenizer import Tokenizer
    from octavo.openai.request import ParsedBody

LEAST_LOGPROB = -9999.0

Piece = dict[str, Any]


class ChunkMaker:
    """Makes the pieces of the answer to the prompt of number ``prompt``."""

    def __init__(
        self, asked: ParsedBody, tokenizer: Tokenizer, *, chat: bool, prompt: int = 0
    ) -> None:
        self._asked = asked
        self._tokenizer = tokenizer
        self._chat = chat
        self._text = asked.texts[prompt]
        self._first_index = prompt * asked.params.n
        self._has_begun = [False] * asked.params.n
        self._has_ended = [False] * asked.params.n
        self._offsets = [0] * asked.params.n
        self.num_tokens = 0
        """Tokens of the pieces so far; not those whose text is held back."""
        self._num_held = [0] * asked.params.n
        self._readers = [asked.plan.reader() for _ in range(asked.params.n)]

    def pieces(self, output: RequestOutput, deltas: Sequence[Delta]) -> list[Piece]:
        """Return the pieces of what just came; a delta that shows nothing has none."""
        pieces = []
        for delta in deltas:
            self._num_held[delta.index] += len(delta.token_ids)
            begins = not self._has_begun[delta.index]
            ends = delta.finish_reason is not None
            message: dict[str, Any] = {}
            if self._chat:
                message = self._readers[delta.index].feed(delta.text, is_last=ends)
            shows = ends or delta.logprobs or (message if self._chat else delta.text)
            if not (begins or shows or (self._asked.return_token_ids and delta.token_ids)):
                continue
            self._has_begun[delta.index] = True
            self.num_tokens += self._num_held[delta.index]
            self._num_held[delta.index] = 0
            self._has_ended[delta.index] = ends
            if self._chat:
                piece = self._chat_piece(delta, message, begins)
            else:
                piece = self._completion_piece(output, delta, begins)
            if self._asked.return_token_ids:
                piece["token_ids"] = delta.token_ids
            pieces.append(piece)
        return pieces

    def last_pieces(self, output: RequestOutput) -> list[Piece]:
        """Return an end for each choice that has had none, after a fault."""
        missing = [index for index, has_ended in enumerate(self._has_ended) if not has_ended]
        return self.pieces(output, [Delta(index, "", [], None, "error", None) for index in missing])

    def _piece(self, delta: Delta) -> Piece:
        piece: Piece = {
            "index": self._first_index + delta.index,
            "logprobs": None,
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason is not None:
            piece["stop_reason"] = delta.stop_reason
        return piece

    def _chat_piece(self, delta: Delta, message: dict[str, Any], begins: bool) -> Piece:
        piece = self._piece(delta)
        piece["delta"] = {"role": "assistant", "content": "", **message} if begins else message
        if delta.finish_reason == "stop" and self._readers[delta.index].has_called:
            piece["finish_reason"] = "tool_calls"
        num_top = self._asked.params.logprobs
        if delta.logprobs is not None and num_top is not None:
            positions = zip(delta.token_ids, delta.logprobs, strict=True)
            content = [self._chat_logprob(*position, num_top) for position in positions]
            piece["logprobs"] = {"content": content, "refusal": None}
        return piece

    def _completion_piece(self, output: RequestOutput, delta: Delta, begins: bool) -> Piece:
        piece = self._piece(delta)
        echo = begins and self._asked.echo
        prompt = ""
        if begins and (echo or delta.logprobs is not None):
            prompt = self._decoded(output) if self._text is None else self._text
        piece["text"] = prompt + delta.text if echo else delta.text
        if begins and self._asked.return_token_ids:
            piece["prompt_token_ids"] = output.prompt_token_ids
        num_top = self._asked.params.logprobs
        if delta.logprobs is None or num_top is None:
            return piece
        ids: list[int] = list(delta.token_ids)
        positions: list[Mapping[int, Logprob] | None] = list(delta.logprobs)
        if echo:
            scores = output.prompt_logprobs or ()  # fewer than there are ids, after a fault
            ids = [*output.prompt_token_ids[: len(scores)], *ids]
            positions = [*scores, *positions]
        elif begins:
            self._offsets[delta.index] = len(prompt)
        piece["logprobs"] = self._completion_logprobs(delta.index, ids, positions, num_top)
        return piece

    def _decoded(self, output: RequestOutput) -> str:
        return self._tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False)

    def _chat_logprob(
        self, token_id: int, position: Mapping[int, Logprob], num_top: int
    ) -> dict[str, Any]:
        def entry(token_id: int) -> dict[str, Any]:
            return {
                "token": position[token_id].decoded_token,
                "logprob": finite(position[token_id].logprob),
                "bytes": list(self._tokenizer.token_bytes(token_id)),
            }

        top = [entry(other) for other in _likeliest(position, num_top)]
        return {**entry(token_id), "top_logprobs": top}

    def _completion_logprobs(
        self,
        choice: int,
        ids: Sequence[int],
        positions: Sequence[Mapping[int, Logprob] | None],
        num_top: int,
    ) -> dict[str, Any]:
        """Return OpenAI's four lists; a prompt's first token has no logprob."""
        tokens: list[str] = []
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for token_id, position in zip(ids, positions, strict=True):
            if position is None:
                text = self._tokenizer.decode((token_id,), skip_special_tokens=False)
                values.append(None)
                tops.append(None)
            else:
                text = position[token_id].decoded_token
                values.append(finite(position[token_id].logprob))
                likeliest = (position[other] for other in _likeliest(position, num_top))
                tops.append({entry.decoded_token: finite(entry.logprob) for entry in likeliest})
            tokens.append(text)
            offsets.append(self._offsets[choice])
            self._offsets[choice] += len(text)
        return {
            "tokens": tokens,
            "token_logprobs": values,
            "top_logprobs": tops if num_top else None,
            "text_offset": offsets,
        }


def whole_deltas(output: RequestOutput) -> list[Delta]:
    """Return a finished output as one delta a choice."""
    return [
        Delta(
            choice.index,
            choice.text,
            choice.token_ids,
            choice.logprobs,
            choice.finish_reason,
            choice.stop_reason,
        )
        for choice in output.outputs
    ]


def finite(logprob: float) -> float:
    """Return a number that JSON has."""
    return max(logprob, LEAST_LOGPROB)


def _likeliest(position: Mapping[int, Logprob], count: int) -> list[int]:
    """Return the ids of the ``count`` likeliest tokens: the chosen one is there beside them."""
    return sorted(position, key=lambda token_id: position[token_id].rank)[:count]
