"""`octavo demo`: a few requests in one small cache, a line a step, so that one sees it work."""

import json
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.options import engine_options
from octavo.cli.terminal import check_text, harmless, open_llm, say_faults

if TYPE_CHECKING:
    from octavo.engine.core import EngineCore
    from octavo.engine.request import Request

_NUM_BLOCKS = 64  # few enough that something happens in them
_PROMPTS = ("hello world", "hello there", "goodbye")


@engine_options(
    {
        "num_kv_blocks": "Blocks in the KV cache; overrides --kv-cache-memory. "
        f"[default: {_NUM_BLOCKS}]",
        "kv_cache_memory": "Memory for the KV cache, such as 2GiB, instead of a number of blocks.",
    }
)
def demo(
    *,
    prompts: Annotated[
        list[str] | None,
        typer.Option("--prompts", metavar="TEXT...", help="One or more prompts."),
    ] = None,
    max_new: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 16,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object a line instead.")
    ] = False,
    engine: dict[str, Any],
) -> None:
    """Answer some prompts together, greedily, and print a line a step.

    The answers follow, and once more the numbers, as everything has ended.

    running and waiting: the ids of the requests computed in this step, and of those that are not.
    shared_blocks: full blocks of the KV cache that two or more requests have used so far, each
    computed once. free_blocks: blocks that neither a request holds nor the cache keeps, after the
    step. evictions: cached blocks given up so far.
    """
    from octavo import LLM, SamplingParams

    texts = prompts or list(_PROMPTS)
    for text in texts:
        check_text(text, "prompt")
    if engine["num_kv_blocks"] is None and engine["kv_cache_memory"] is None:
        engine["num_kv_blocks"] = _NUM_BLOCKS
    params = SamplingParams(max_tokens=max_new, temperature=0)
    # The pool is small on purpose: that it shortens the context is news only to who asked for one.
    llm = open_llm(LLM, engine, warn=engine["max_model_len"] is not None)
    requests = []
    for i, text in enumerate(texts):
        prompt = llm.chat_prompt([{"role": "user", "content": text}])
        requests.append(llm.core.add_request(str(i), prompt["prompt_token_ids"], params))
    users: dict[Hashable, set[str]] = {}
    while llm.core.has_requests:
        finished = [request for request in llm.core.step() if request.is_finished]
        _count_users(users, requests, llm.core.cache.block_size)
        print(_step_line(llm.core, finished, users, as_json), flush=True)
    for text, request in zip(texts, requests, strict=True):
        answer = llm.tokenizer.decode(request.output_token_ids)
        print(_answer_line(request, text, answer, as_json))
    print(_step_line(llm.core, [], users, as_json))
    say_faults(llm.faults)


def _count_users(
    users: dict[Hashable, set[str]], requests: Iterable["Request"], block_size: int
) -> None:
    """Note who has used which full block. The key, not the id: a block id is used again."""
    for request in requests:
        for key in request.block_keys[: request.num_computed_tokens // block_size]:
            users.setdefault(key, set()).add(request.request_id)


def _step_line(
    core: "EngineCore",
    finished: list["Request"],
    users: dict[Hashable, set[str]],
    as_json: bool,
) -> str:
    """Return the numbers after the latest step, in which the ``finished`` were computed too."""
    scheduler = core.scheduler
    computed = sorted([*scheduler.running, *finished], key=lambda request: request.order)
    line = {
        "step": core.num_steps,
        "running": [int(request.request_id) for request in computed],
        "waiting": [int(request.request_id) for request in scheduler.waiting],
        "shared_blocks": sum(len(ids) > 1 for ids in users.values()),
        "free_blocks": core.cache.pool.num_free,
        "evictions": core.cache.stats.evictions,
    }
    if as_json:
        return json.dumps(line)
    return " ".join(f"{name}={value}" for name, value in line.items())


def _answer_line(request: "Request", prompt: str, answer: str, as_json: bool) -> str:
    if not as_json:
        return harmless(f"[{request.request_id}] {prompt!r} -> {answer!r}")
    return json.dumps(
        {
            "request": int(request.request_id),
            "prompt": prompt,
            "num_prompt_tokens": request.num_prompt_tokens,
            "num_cached_tokens": request.num_cached_tokens,
            "token_ids": request.output_token_ids,
            "text": answer,
            "finish_reason": request.finish_reason and request.finish_reason.value,
        }
    )
