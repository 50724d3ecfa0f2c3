"""Which fields of a request are not honoured: one that would change the answer is refused by name.

One that would not is accepted, and so is one that nobody knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.errors import InvalidRequestError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

_NEVER: tuple[Any, ...] = ()

# Field to the values under which it asks for nothing.
_NOT_HONOURED: dict[str, tuple[Any, ...]] = {
    "modalities": (["text"],),
    "audio": _NEVER,
    "prediction": _NEVER,
    "reasoning_effort": _NEVER,
    "verbosity": ("medium",),
    "web_search_options": _NEVER,
    "suffix": ("",),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "guided_whitespace_pattern": _NEVER,
    "guided_decoding_backend": _NEVER,
    "chat_template": _NEVER,
    "documents": ([],),
    "truncate_prompt_tokens": _NEVER,
    "logits_processors": ([],),
    "prompt_embeds": _NEVER,
    "spaces_between_special_tokens": (True,),
    "detokenize": (True,),
    "return_tokens_as_token_ids": (False,),
    "kv_transfer_params": _NEVER,
    "vllm_xargs": ({},),
}
# The same, where a field has another place.
_ELSEWHERE: dict[str, tuple[tuple[Any, ...], str]] = {
    "functions": (([],), "tools"),
    "function_call": (("none", "auto"), "tool_choice"),
}
_CHAT_ONLY: dict[str, tuple[Any, ...]] = {"tools": ([],), "tool_choice": ("none", "auto")}


def check_honoured(given: Mapping[str, Any], *, chat: bool) -> None:
    """Refuse a field that would change the answer and does not here."""
    fields = _NOT_HONOURED if chat else {**_NOT_HONOURED, **_CHAT_ONLY}
    told = [(name, harmless, "leave it out") for name, harmless in fields.items()]
    told += [(name, harmless, f"give {to}") for name, (harmless, to) in _ELSEWHERE.items()]
    for name, harmless, remedy in told:
        if name in given and given[name] not in harmless:
            raise InvalidRequestError(
                f"{name}={shown(given[name])} is not supported; {remedy}", param=name
            )
