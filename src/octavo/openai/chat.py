"""A chat's prompt, and the plan of its answer: reasoning, calls of tools, text or a structure.

One place decides what the model is told, what its answer is held to, and how that is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from octavo.errors import InvalidRequestError
from octavo.openai.grammar import answer_grammar
from octavo.openai.reader import AnswerReader
from octavo.openai.reasoning import reasoning_of
from octavo.openai.tools.formats import format_of
from octavo.openai.tools.grammar import closed
from octavo.openai.tools.messages import messages_with_tools
from octavo.openai.tools.request import read_tool_use
from octavo.sampling.structured import PARAM, StructuredOutputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from octavo.engine.llm import LLM
    from octavo.model.text.tokenizer import Tokenizer
    from octavo.openai.reasoning import Reasoning
    from octavo.openai.tools.formats import ToolFormat
    from octavo.openai.tools.request import ToolUse
    from octavo.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """What an answer may consist of, and how it is read; by default it is text."""

    reasoning: Reasoning | None = None
    use: ToolUse | None = None
    form: ToolFormat | None = None

    def reader(self) -> AnswerReader:
        """Return what reads one choice."""
        return AnswerReader(self.reasoning, self.use, self.form)

    def held_to(self, params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
        """Return the parameters under which an answer is as planned.

        The structure that a request asks for is that of the answer's text, behind the reasoning.
        """
        asked = params.shape
        structure = answer_grammar(
            asked, self.reasoning, self.use, self.form, tokenizer.control_literals
        )
        if structure is not asked:
            params = dataclasses.replace(params, structured_outputs=structure)
        if not self._literals.isdisjoint(tokenizer.control_literals):
            params = dataclasses.replace(params, skip_special_tokens=False)  # else they are unseen
        return params

    @contextmanager
    def naming_tools(
        self, asked: StructuredOutputs | None, check: Callable[[StructuredOutputs], None]
    ) -> Iterator[None]:
        """Let a fault of the whole grammar name the part that has it.

        ``asked`` is the structure that the request asks for; ``check`` raises
        `InvalidRequestError` for one that cannot be had.
        """
        try:
            yield
        except InvalidRequestError as error:
            if error.param != PARAM:
                raise
            if asked is not None:
                check(asked)
            if self.use is None:
                raise
            for tool in self.use.callable:
                try:
                    check(StructuredOutputs(json=closed(tool.parameters)))
                except InvalidRequestError as fault:
                    if fault.param == PARAM:
                        raise InvalidRequestError(
                            f"{tool.where}: {fault}", param=tool.where
                        ) from None
            raise InvalidRequestError(f"tools, all together: {error}", param="tools") from None

    @property
    def _literals(self) -> set[str]:
        """All literals that mark a part of an answer."""
        found = set[str]()
        if self.reasoning is not None:
            found |= {self.reasoning.start, self.reasoning.end}
        if self.use is not None and self.form is not None:
            found |= self.form.literals
        return found


PLAIN: Final = AnswerPlan()
"""Nothing but text."""


def read_chat(
    given: Mapping[str, Any], llm: LLM, *, add_generation_prompt: bool, continues: bool
) -> tuple[dict[str, Any], AnswerPlan]:
    """Return the prompt of a chat's body, which has messages, and the plan of its answer.

    ``continues`` leaves the last message open, for the answer to go on with.
    Raises `InvalidRequestError`.
    """
    use = read_tool_use(given)
    template = llm.model.chat_template
    form = None if template is None else format_of(template.source)
    messages = given["messages"]
    kwargs = given.get("chat_template_kwargs")
    if template is not None and form is not None:
        messages = messages_with_tools(messages, use, form, template)
        if use is not None and form.tools_variable is not None:
            kwargs = _with_tools(kwargs, form.tools_variable, use)
    prompt = llm.chat_prompt(
        messages,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continues,
        chat_template_kwargs=kwargs,
    )
    assert template is not None, "chat_prompt refuses a model without one"
    continued = messages[-1]["content"] if continues else None
    reasoning = reasoning_of(template, llm.tokenizer, prompt["prompt_token_ids"], continued)
    return prompt, AnswerPlan(reasoning, use, form)


def _with_tools(kwargs: object, variable: str, use: ToolUse) -> object:
    if kwargs is None:
        kwargs = {}
    if not isinstance(kwargs, Mapping):
        return kwargs  # refused where all of them are
    if variable in kwargs:
        raise InvalidRequestError(
            f"chat_template_kwargs holds {variable!r}, and tools are given; give one of the two",
            param="chat_template_kwargs",
        )
    return {**kwargs, variable: [tool.definition for tool in use.tools]}
