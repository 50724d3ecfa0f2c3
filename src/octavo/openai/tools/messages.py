"""Calls and their results in a conversation: checked, and brought to what a template takes.

Templates that know tools get a call's arguments as an object, as their authors expect. For the
others everything is written as text: the tools in the system message, calls and results between
tags (the generic form).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from octavo.errors import ChatTemplateError, InvalidRequestError, shown
from octavo.model.text.chat_messages import checked_messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from octavo.model.text.chat import ChatTemplate
    from octavo.openai.tools.formats import ToolFormat
    from octavo.openai.tools.request import Tool, ToolUse

Message = dict[str, Any]

# Small models copy what they are shown: a call of each function, beside it, shows more than words.
_EXPLANATION: Final = (
    "You can call functions. To call one, answer with its call, the values filled in, and nothing "
    "else. The result comes back in <tool_response> tags."
)
_SYSTEM_ROLES: Final = ("system", "developer")


def messages_with_tools(
    given: Sequence[Mapping[str, object]],
    use: ToolUse | None,
    form: ToolFormat,
    template: ChatTemplate,
) -> list[Message]:
    """Return messages for ``template``, whose form is ``form``.

    Raises `InvalidRequestError` with the message's place.
    """
    messages = [
        _checked(message, f"messages[{n}]") for n, message in enumerate(checked_messages(given))
    ]
    if form.calls_as_text:
        messages = [_call_as_text(message) for message in messages]
    if form.tools_variable is not None:
        return messages
    messages = _results_as_text(messages)
    return messages if use is None else _explained(messages, _explanation(use), template)


def _checked(message: Message, where: str) -> Message:
    call_id = message.get("tool_call_id")
    if call_id is not None and not isinstance(call_id, str):
        raise InvalidRequestError(
            f"{where}.tool_call_id={shown(call_id)} must be a string", param=f"{where}.tool_call_id"
        )
    calls = message.get("tool_calls")
    if calls is None or calls == []:  # as clients send what they got
        return {key: value for key, value in message.items() if key != "tool_calls"}
    where = f"{where}.tool_calls"
    if not isinstance(calls, list | tuple):
        raise InvalidRequestError(f"{where}={shown(calls)} must be a list", param=where)
    return {
        **message,
        "content": message["content"] or "",  # Qwen 3's template cannot do with null
        "tool_calls": [_checked_call(call, f"{where}[{n}]") for n, call in enumerate(calls)],
    }


def _checked_call(call: object, where: str) -> Message:
    if not isinstance(call, Mapping):
        raise InvalidRequestError(f"{where}={shown(call)} must be an object", param=where)
    if call.get("type", "function") != "function":
        raise InvalidRequestError(
            f"{where}.type={shown(call['type'])} is not supported; it must be 'function'",
            param=f"{where}.type",
        )
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequestError(
            f"{where}.function={shown(function)} must be an object with a name and arguments",
            param=f"{where}.function",
        )
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    # In this order: some templates write the object as it is, and clients send it in another.
    ordered = {"name": function["name"], "arguments": arguments}
    return {**call, "type": "function", "function": {**ordered, **function, **ordered}}


def _arguments(given: object, where: str) -> dict[str, Any]:
    """Return a call's arguments as an object; OpenAI's form is JSON in a string."""
    value: object = given
    if given is None or given == "":
        value = {}
    elif isinstance(given, str):
        try:
            value = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(
                f"{where}={shown(given)} must be the JSON text of an object: {error}", param=where
            ) from None
    if not isinstance(value, dict):
        raise InvalidRequestError(
            f"{where}={shown(given)} must be the JSON text of an object", param=where
        )
    return value


def _results_as_text(messages: list[Message]) -> list[Message]:
    """Write results as a user's. Those that follow one another are one message."""
    written: list[Message] = []
    follows_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        text = f"<tool_response>\n{message['content'] or ''}\n</tool_response>"
        if is_result and follows_result:
            written[-1]["content"] += "\n" + text
        else:
            written.append({"role": "user", "content": text} if is_result else message)
        follows_result = is_result
    return written


def _call_as_text(message: Message) -> Message:
    if "tool_calls" not in message:
        return message
    texts = [message["content"]] * bool(message.get("content"))
    for call in message["tool_calls"]:
        texts.append(_written(call["function"]["name"], call["function"]["arguments"]))
    return {
        **{key: value for key, value in message.items() if key != "tool_calls"},
        "content": "\n".join(texts),
    }


def _written(name: str, arguments: Mapping[str, Any]) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def _explanation(use: ToolUse) -> str:
    parts = [_EXPLANATION]
    for tool in use.tools:
        told = json.dumps(tool.definition["function"], ensure_ascii=False)
        parts.append(f"{told}\n{_written(tool.name, dict.fromkeys(_usual(tool), '...'))}")
    return "\n\n".join(parts)


def _usual(tool: Tool) -> list[str]:
    """Return the names of the arguments that a call needs; of all where it needs none."""
    properties = tool.parameters.get("properties")
    required = tool.parameters.get("required")
    named = required if isinstance(required, list) and required else properties or ()
    return [name for name in named if isinstance(name, str)]


def _explained(messages: list[Message], explanation: str, template: ChatTemplate) -> list[Message]:
    """Put what explains the tools where the template takes it."""
    first = messages[0]
    if first["role"] in _SYSTEM_ROLES:
        content = f"{first['content']}\n\n{explanation}" if first["content"] else explanation
        return [{**first, "content": content}, *messages[1:]]
    if _takes_system(template):
        return [{"role": "system", "content": explanation}, *messages]
    if first["role"] == "user":
        content = f"{explanation}\n\n{first['content'] or ''}"
        return [{**first, "content": content}, *messages[1:]]
    return [{"role": "user", "content": explanation}, *messages]


def _takes_system(template: ChatTemplate) -> bool:
    messages = [{"role": "system", "content": "probe"}, {"role": "user", "content": "x"}]
    try:
        return "probe" in template.render_text(messages)
    except ChatTemplateError:
        return False
