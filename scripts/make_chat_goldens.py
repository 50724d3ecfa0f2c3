"""Makes the texts that transformers renders from the chat templates under tests/data.

pip install transformers jinja2
python scripts/make_chat_goldens.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

DATA = Path(__file__).parents[1] / "tests" / "data" / "chat_templates"

CHATML = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
LLAMA3 = ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
PHI3 = ["<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<s>", "</s>"]
MISTRAL = [
    "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
]  # fmt: skip
GEMMA = ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<pad>"]
# By family: bos, eos, the control tokens, and which of the groups of conversations it is shown.
FAMILIES: dict[str, tuple[str | None, str, list[str], set[str]]] = {
    "llama2": ("<s>", "</s>", ["<unk>", "<s>", "</s>"], {"system", "alternation"}),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>", LLAMA3, {"system", "tools"}),
    "mistral": ("<s>", "</s>", MISTRAL, {"system", "alternation", "tools"}),
    "qwen2.5": (None, "<|im_end|>", CHATML, {"system", "tools"}),
    "qwen3": (None, "<|im_end|>", CHATML, {"system", "tools", "thinking"}),
    "gemma2": ("<bos>", "<eos>", GEMMA, {"system", "alternation"}),
    "gemma3": ("<bos>", "<eos>", GEMMA, {"system", "alternation"}),
    "phi3": ("<s>", "<|endoftext|>", PHI3, {"system"}),
    "smollm3": (
        "<|begin_of_text|>", "<|im_end|>", [*CHATML, *LLAMA3], {"system", "thinking", "xml"},
    ),
}  # fmt: skip

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'The weather <now> in a "city", e.g. Zürich',
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "time", "description": "", "parameters": {}}},
]


def said(*turns: tuple[str, str]) -> list[dict[str, Any]]:
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": names[role], "content": content} for role, content in turns]


def call(**arguments: str) -> list[dict[str, Any]]:
    function = {"name": "weather", "arguments": arguments}
    return [{"type": "function", "id": "abcdefgh1", "function": function}]


def conversations(
    control: list[str],
) -> dict[str, list[tuple[list[dict[str, Any]], dict[str, Any]]]]:
    """By group: messages and the arguments of the rendering."""
    turns = said(("u", " Hello,\n world! "), ("a", "\n\nHi there. "), ("u", "日本語 é 😀"))
    thought = said(("u", "1+1?"), ("a", "<think>\nadd them\n</think>\n\n2"), ("u", "and 2+2?"))
    used = [
        *said(("u", "Is it raining?")),
        {"role": "assistant", "content": "", "tool_calls": call(city='Zürich "<b>"')},
        *said(("t", '{"rain": true}'), ("a", "Yes.")),
    ]
    return {
        "plain": [
            (said(("u", "Hi")), {}),
            (said(("u", "Hi")), {"add_generation_prompt": False}),
            (said(("u", "")), {}),
            (turns, {}),
            ([*turns, *said(("a", "Bye  "))], {"add_generation_prompt": False}),
            (said(("u", " ".join(control))), {}),
            (said(("u", "{{ bos_token }} {% if %} &lt;b&gt; \\n \"'")), {}),
        ],
        "system": [
            (said(("s", " Be brief. "), ("u", "Hi")), {}),
            ([*said(("s", "Be brief.")), *turns], {"add_generation_prompt": False}),
            (said(("s", ""), ("u", "Hi")), {}),
        ],
        "alternation": [
            (said(("u", "one"), ("u", "two")), {}),
            (said(("a", "first")), {}),
            (said(("s", "x"), ("u", "a"), ("u", "b")), {}),
        ],
        "tools": [
            (said(("u", "Is it raining?")), {"tools": TOOLS}),
            (said(("s", "Be brief."), ("u", "Is it raining?")), {"tools": TOOLS[:1]}),
            (used, {"tools": TOOLS, "add_generation_prompt": False}),
            ([*used, *said(("u", "Thanks"))], {"tools": TOOLS}),
            (used[:3], {}),
        ],
        "thinking": [
            (said(("u", "Hi")), {"enable_thinking": False}),
            (said(("u", "Hi")), {"enable_thinking": True}),
            (thought, {}),
            (thought, {"enable_thinking": False}),
            (thought[:2], {"add_generation_prompt": False}),
            (said(("s", "Be kind. /no_think"), ("u", "Hi")), {}),
            ([*thought[:1], {**thought[1], "reasoning_content": "hm"}, thought[2]], {}),
        ],
        "xml": [
            (said(("u", "Hi")), {"xml_tools": TOOLS}),
            (said(("s", "You are x. /system_override"), ("u", "Hi")), {}),
        ],
    }


def render(family: str) -> dict[str, Any]:
    bos, eos, control, groups = FAMILIES[family]
    template = (DATA / f"{family}.jinja").read_text(encoding="utf-8")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE({t: i for i, t in enumerate(control)}, [])),
        bos_token=bos,
        eos_token=eos,
        chat_template=template,
    )
    cases: list[dict[str, Any]] = []
    for group, conversation in conversations(control).items():
        if group != "plain" and group not in groups:
            continue
        for messages, options in conversation:
            options = {"add_generation_prompt": True, **options}
            case: dict[str, Any] = {"messages": messages, "options": options}
            try:
                case["text"] = tokenizer.apply_chat_template(messages, tokenize=False, **options)
            except jinja2.TemplateError as error:
                case["error"] = str(error)
            cases.append(case)
    return {"bos": bos, "eos": eos, "control": control, "cases": cases}


if __name__ == "__main__":
    for family in FAMILIES:
        text = json.dumps(render(family), ensure_ascii=False, indent=1)
        (DATA / f"{family}.json").write_text(text + "\n", encoding="utf-8")
