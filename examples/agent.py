"""An agent with two tools, written with OpenAI's client alone.

    octavo serve smollm2 --port 8000
    python examples/agent.py "How warm is it in Paris?" "What is 17 plus 25?"

The loop is the usual one: while the model calls, run what it calls and tell it the result. The
arguments always parse and hold to the function's schema: the server lets nothing else through. The
default model is tiny (135 million parameters) and would rather guess than look anything up, so the
first step must call; a larger one can choose by itself ("auto").
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from openai import OpenAI

TEMPERATURES = {"paris": 21, "london": 16, "tokyo": 28, "berlin": 18}  # a stand-in for a service
MOST_STEPS = 4


def get_temperature(city: str) -> str:
    """Get the temperature in a city."""
    known = TEMPERATURES.get(city.lower())
    return f"Nothing is known of {city}." if known is None else f"It is {known} degrees in {city}."


def add(a: float, b: float) -> str:
    """Add two numbers."""
    return f"{a + b:g}"


TOOLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "get_temperature": (get_temperature, {"city": {"type": "string", "maxLength": 40}}),
    "add": (add, {"a": {"type": "number"}, "b": {"type": "number"}}),
}


def definitions() -> list[Any]:
    """Return the tools as OpenAI's API takes them."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": function.__doc__,
                "parameters": {
                    "type": "object",
                    "properties": properties,
                    "required": list(properties),
                    "additionalProperties": False,
                },
                "strict": True,
            },
        }
        for name, (function, properties) in TOOLS.items()
    ]


def run(client: OpenAI, question: str, *, model: str = "smollm2", say: Any = print) -> str | None:
    """Answer one question; ``say`` is told of every call."""
    messages: list[Any] = [{"role": "user", "content": question}]
    for step in range(MOST_STEPS):
        answer = client.chat.completions.create(
            model=model,
            messages=messages,
            tools=definitions(),
            tool_choice="auto" if step else "required",
            parallel_tool_calls=False,
            temperature=0,
            max_completion_tokens=128,
        )
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            assert call.type == "function", "the only type that was offered"
            function, _ = TOOLS[call.function.name]
            result = function(**json.loads(call.function.arguments))
            say(f"  {call.function.name}({call.function.arguments}) -> {result}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return None


def main() -> None:
    """Answer the questions of the command line."""
    parser = argparse.ArgumentParser(description="An agent with two tools.")
    parser.add_argument("questions", nargs="+")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="smollm2")
    asked = parser.parse_args()
    with OpenAI(base_url=asked.base_url, api_key="none") as client:
        for question in asked.questions:
            print(question)
            print(run(client, question, model=asked.model))


if __name__ == "__main__":
    main()
