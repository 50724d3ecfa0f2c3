"""The lines of a batch as jobs: what each asks for, and the line that answers it.

A line is a job of one part, or of several where a completion has several prompts.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.errors import InvalidRequestError, OctavoError
from octavo.openai.request import ParsedBody, model_names, parse_body
from octavo.openai.response import error_body, finished_body

if TYPE_CHECKING:
    from collections.abc import Mapping

    from octavo.engine.llm import LLM
    from octavo.engine.outputs import RequestOutput

_CHAT_URL = "/v1/chat/completions"
_URLS = (_CHAT_URL, "/v1/completions")


class Job:
    """One line: what it asks for, or why it is refused, and what has been answered so far."""

    def __init__(self, custom_id: str, *, chat: bool, asked: ParsedBody | OctavoError) -> None:
        self.custom_id = custom_id
        self.refused = asked if isinstance(asked, OctavoError) else None
        self.parts: list[Part] = []
        if isinstance(asked, ParsedBody):
            self.asked = asked
            self.parts = [Part(self, i) for i in range(len(asked.prompts))]
        self._chat = chat
        self._outputs: dict[int, RequestOutput] = {}

    @classmethod
    def parse(cls, line: Mapping[str, Any], llm: LLM, *, seed: int) -> Job:
        """Read a line that has a custom_id; ``seed`` is for a body without one."""
        asked: ParsedBody | OctavoError
        chat = line.get("url") == _CHAT_URL
        try:
            if line.get("method", "POST") != "POST":
                raise InvalidRequestError("method must be POST", param="method")
            if line.get("url") not in _URLS:
                raise InvalidRequestError(f"url must be one of {', '.join(_URLS)}", param="url")
            asked = parse_body(line.get("body"), llm, chat=chat, seed=seed)
        except InvalidRequestError as error:
            asked = error
        return cls(line["custom_id"], chat=chat, asked=asked)

    def take(self, part: Part, output: RequestOutput) -> bool:
        """Take in the answer to a part; return whether it was the last."""
        self._outputs[part.index] = output
        return len(self._outputs) == len(self.parts)

    def result(self, llm: LLM) -> tuple[int, dict[str, Any]]:
        """Return the HTTP status, and the line for the file of results."""
        outputs = [output for _, output in sorted(self._outputs.items())]
        failed = self.refused
        for output in outputs:
            if output.error is not None:
                failed = failed or OctavoError(output.error)
        model = model_names(llm)[0]
        if failed is not None:
            status, body = failed.http_status, error_body(failed)
        else:
            status, body = (
                200,
                finished_body(outputs, self.asked, llm.tokenizer, chat=self._chat, model=model),
            )
        response = {"status_code": status, "request_id": uuid.uuid4().hex, "body": body}
        return status, {
            "id": f"batch_req_{uuid.uuid4().hex}",
            "custom_id": self.custom_id,
            "response": response,
            "error": None,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One prompt of a job."""

    job: Job
    index: int
