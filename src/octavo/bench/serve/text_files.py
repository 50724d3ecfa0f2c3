"""Prompts from files of text: ShareGPT's conversations, and JSON lines of one's own.

sharegpt   [{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", ...}]}, ...]
custom     one a line: {"prompt": text or token ids} or {"messages": [...]}, and output_tokens
"""

from __future__ import annotations

import json
import random
from itertools import islice
from typing import TYPE_CHECKING, Any

from octavo.bench.serve.datasets import BenchRequest, message
from octavo.errors import ConfigError, TraceError
from octavo.simulate.files import Line, read_lines

if TYPE_CHECKING:
    from pathlib import Path

    from octavo.bench.serve.settings import DatasetSettings
    from octavo.model.text.tokenizer import Tokenizer

# As vLLM: shorter ones say nothing, longer ones were too long for the models of that time.
_MIN_LEN, _MAX_PROMPT_LEN, _MAX_TOTAL_LEN = 4, 1024, 2048
_CUSTOM_OUTPUT_LEN = 256


def load_sharegpt(
    path: Path, settings: DatasetSettings, *, seed: int, is_chat: bool, tokenizer: Tokenizer | None
) -> list[BenchRequest]:
    """Return the first turns of conversations, in the order of ``seed``.

    The second turn says the answer's length. Left out are turns below 4 tokens, and, unless
    ``max_total_len`` says more, prompts above 1024 tokens and sums above 2048.
    """
    if tokenizer is None:
        raise ConfigError(
            "sharegpt has text, and its tokens must be counted: name a tokenizer, such as "
            "--tokenizer smollm2",
            param="tokenizer",
        )
    turns = _first_turns(path)
    random.Random(seed).shuffle(turns)
    longest = settings.max_total_len or _MAX_TOTAL_LEN
    longest_prompt = settings.max_total_len or _MAX_PROMPT_LEN
    asked_len = settings.output_len or settings.sharegpt_output_len
    found: list[BenchRequest] = []
    for prompt, answer in turns:
        prompt_len = len(tokenizer.encode(prompt))
        output_len = asked_len or len(tokenizer.encode(answer))
        if (
            _MIN_LEN <= prompt_len <= longest_prompt
            and (asked_len or output_len >= _MIN_LEN)
            and prompt_len + output_len <= longest
        ):
            sent = message(prompt) if is_chat else prompt
            found.append(BenchRequest(sent, prompt_len, output_len))
        if len(found) == settings.num_prompts:
            break
    return found


def _first_turns(path: Path) -> list[tuple[str, str]]:
    """Return the first two turns of every conversation that has two."""
    try:
        conversations = json.loads("\n".join(line.text for line in read_lines(path)))
        return [
            (turns[0]["value"], turns[1]["value"])
            for each in conversations
            if len(turns := each.get("conversations", ())) >= 2
        ]
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise TraceError(
            f"{path} is not ShareGPT's JSON, a list of conversations: {error!r}"
        ) from None


def load_custom(
    path: Path, settings: DatasetSettings, *, seed: int, is_chat: bool, tokenizer: Tokenizer | None
) -> list[BenchRequest]:
    """Return the file's requests in the file's own order; ``seed`` is of no use here.

    Without a tokenizer the length of a text is 0 until the server says it.
    """
    del seed
    asked_len = settings.output_len or settings.custom_output_len
    requests = (_of_line(line, asked_len, is_chat, tokenizer) for line in read_lines(path))
    longest = settings.max_total_len
    fitting = (
        each for each in requests if longest is None or each.prompt_len + each.output_len <= longest
    )
    return list(islice(fitting, settings.num_prompts))


def _of_line(
    line: Line, asked_len: int | None, is_chat: bool, tokenizer: Tokenizer | None
) -> BenchRequest:
    fields = line.json()
    output_len = asked_len or fields.count("output_tokens", _CUSTOM_OUTPUT_LEN)
    if "messages" in fields.values:
        if not is_chat:
            raise line.error("messages are for a chat: --backend openai-chat")
        return BenchRequest(fields.get("messages", list), 0, output_len)
    prompt: Any = fields.values.get("prompt")
    if isinstance(prompt, list) and prompt and all(type(each) is int for each in prompt):
        if is_chat:
            raise line.error("the prompt is token ids, and a chat wants text: --backend openai")
        return BenchRequest(prompt, len(prompt), output_len)
    if not isinstance(prompt, str) or not prompt:
        raise line.error("there is no prompt, text or token ids, and there are no messages")
    prompt_len = 0 if tokenizer is None else len(tokenizer.encode(prompt))
    return BenchRequest(message(prompt) if is_chat else prompt, prompt_len, output_len)
