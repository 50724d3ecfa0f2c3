"""Renders conversations by the model's own template; no user can write a control token.

Why a user's text can never become a control token:

1. Before rendering, every string of the user's (contents, names, unknown roles, tool calls, tools,
   keyword arguments; keys of mappings too) has each character that occurs in any control
   token's literal, in whatever case, replaced by a mark: a code point that no valid text contains.
2. No operation of a template turns a mark back into its character (see ``marked_text``).
3. Control tokens are looked for in the rendered text while the marks are still in it. A literal
   that is found therefore consists of the template's own characters, every one: not inside a
   content, not across the seam of a content and the template, not made by trimming.
4. What lies between is unmarked and encoded as plain text, which can give no control token (see
   ``Tokenizer``). Template text and contents side by side are encoded as one string, so the ids
   are those that the whole text would have.

The six usual role names count as the template's own: templates build tokens like ``<|user|>``
from them. So do numbers, and the characters that escaping adds (the ``n`` of JSON's line break).

A template that looks at a message by means which ``MarkedText`` does not imitate could render
another text than for the real message. So the template is also rendered with the real one, and
the two texts are compared; see ``ChatTemplate._check_unmarked``.

This module must not know how a model is run, nor of HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from octavo.errors import ChatTemplateError, InvalidRequestError, ModelFileError
from octavo.model.text.chat_messages import check_value, checked_messages
from octavo.model.text.marked_text import UNUSED_MARK, Marks, with_case_variants

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jinja2.parser import Parser

    from octavo.model.text.tokenizer import Tokenizer

_KNOWN_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
# Follows the message to be continued, so that its end is found in the rendered text; the blank
# shows whether the template trims.
_END_MARK: Final = f"{UNUSED_MARK} "
# What a template at fault, or one that gets messages of another shape than it expects, may raise.
_RENDER_ERRORS: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """A model's chat template, compiled once; safe to share between threads.

    A model without a template has no ChatTemplate: none is invented for it.
    """

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """Compile ``source``.

        Raises ModelFileError where it is not a Jinja template: the model's file is at fault, and
        no request could do better.
        """
        self.source = source
        self._tokenizer = tokenizer
        literals = tokenizer.control_literals
        try:
            self._marks = Marks(with_case_variants(chain.from_iterable(literals)))
            self._template = _compile(source, self._marks)
        except jinja2.TemplateSyntaxError as error:
            raise ModelFileError(
                f"the chat template is not valid: {error.message} (line {error.lineno})"
            ) from error
        except ValueError as error:
            raise ModelFileError(f"the literals of the control tokens: {error}") from error
        self._edges = with_case_variants(literal[i] for literal in literals for i in (0, -1))

    def render_ids(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: object,
    ) -> list[int]:
        """The ids of the conversation, exactly as the model is to see them: no BOS is added.

        ``continue_final_message`` leaves the last message open, for the model to go on with;
        ``add_generation_prompt`` must then be False. ``template_kwargs`` (``tools`` among them)
        reach the template as variables. A content that is a list of text parts is joined by line
        breaks, since a template for text expects a string.

        Raises InvalidRequestError where an argument is malformed, naming it, and
        ChatTemplateError where the template refuses the messages or cannot render them.
        """
        text = self._render(
            messages, add_generation_prompt, continue_final_message, template_kwargs
        )
        return self._tokenizer.encode_pieces(
            piece if isinstance(piece, int) else self._marks.unmark(piece)
            for piece in self._tokenizer.split_control(text)
        )

    def render_text(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: object,
    ) -> str:
        """The text that ``render_ids`` encodes, for people to look at.

        Encoding it anew would be wrong: it no longer tells whose a control token's literal is.
        """
        return self._marks.unmark(
            self._render(messages, add_generation_prompt, continue_final_message, template_kwargs)
        )

    def _render(
        self,
        messages: Sequence[Mapping[str, object]],
        add_generation_prompt: bool,
        continue_final_message: bool,
        template_kwargs: dict[str, object],
    ) -> str:
        """The rendered conversation with the user's characters marked."""
        given = checked_messages(messages)
        variables = self._variables(template_kwargs, add_generation_prompt)
        if continue_final_message:
            if add_generation_prompt:
                raise InvalidRequestError(
                    "continue_final_message and add_generation_prompt exclude each other; "
                    "set add_generation_prompt to false",
                    param="continue_final_message",
                )
            _append_end_mark(given[-1], f"messages[{len(given) - 1}].content")
        edges: set[str] = set()

        def mark(text: str) -> str:
            edges.update(self._edges.intersection(text))
            return self._marks.mark(text)

        marked_messages = [_map_message(message, mark) for message in given]
        marked_kwargs = _map_strings(template_kwargs, mark)
        try:
            real = self._template.render(messages=given, **variables, **template_kwargs)
        except _RENDER_ERRORS as error:
            raise _as_template_error(error, given) from error
        try:
            text = self._template.render(messages=marked_messages, **variables, **marked_kwargs)
        except _RENDER_ERRORS:
            text = ""  # differs from the real one, or else nothing was to be rendered
        if self._marks.unmark(text) != real:
            self._check_unmarked(text, real, edges)
            text = real
        if continue_final_message:
            text = _cut_at_end_mark(self._marks.join([text]))
        return str.__str__(text)

    def _check_unmarked(self, marked: str, real: str, edges: set[str]) -> None:
        """Refuse the request unless ``real``, where no mark tells what is whose, is safe.

        The template has done something that marks do not survive. Its control tokens must then
        be those of the ``marked`` text, which are the template's own, and no string of the user's
        may have a character that begins or ends the literal of one (``edges`` are those found).
        """
        own, found = (
            [piece for piece in self._tokenizer.split_control(text) if isinstance(piece, int)]
            for text in (marked, real)
        )
        if edges or own != found:
            culprits = f"; remove {' '.join(sorted(edges))} from them" if edges else ""
            raise ChatTemplateError(
                "the model's chat template transforms these messages in a way that cannot be "
                f"followed safely{culprits}",
                param="messages",
            )

    def _variables(
        self, template_kwargs: dict[str, object], add_generation_prompt: bool
    ) -> dict[str, object]:
        own: dict[str, object] = {
            **self._tokenizer.named_tokens,
            "add_generation_prompt": add_generation_prompt,
            "strftime_now": datetime.now().strftime,  # one moment for both renderings
        }
        for name, value in template_kwargs.items():
            if name in own or name == "messages":
                raise InvalidRequestError(
                    f"template argument {name!r} is set by the engine; remove it", param=name
                )
            check_value(value, name)
        for name in ("tools", "documents"):
            if name not in template_kwargs:
                own[name] = None  # templates ask ``is none``, not ``is defined``
        return own


def _map_message(message: dict[str, object], change: Callable[[str], str]) -> dict[str, Any]:
    changed: dict[str, Any] = _map_strings(message, change)
    if message["role"] in _KNOWN_ROLES:
        changed["role"] = message["role"]
    return changed


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(k): _map_strings(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(element, change) for element in value]
    return value


def _append_end_mark(message: dict[str, object], where: str) -> None:
    content = message["content"]
    if not isinstance(content, str):
        raise InvalidRequestError(
            "continue_final_message needs a final message with text to continue", param=where
        )
    message["content"] = content + _END_MARK


def _cut_at_end_mark(text: str) -> str:
    """The text up to the end of the last message; trimmed there if the template trims."""
    before, found, after = text.rpartition(UNUSED_MARK)
    if not found:
        raise ChatTemplateError(
            "the model's chat template leaves out the final message, so it cannot be continued",
            param="continue_final_message",
        )
    return before if after.startswith(" ") else before.rstrip()


class _GenerationTag(Extension):
    """``{% generation %}``: tells trainers which text is the model's; here its body, no more."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _TildeAsJoin(NodeTransformer):
    """``a ~ b`` through the environment's own ``concat``, as macros do; Jinja loses the type."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes), "concatenated", [], [], None, None).set_lineno(
            node.lineno
        )


def _compile(source: str, marks: Marks) -> jinja2.Template:
    """Compile as transformers does, which is what template authors write for."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationTag],
    )
    environment.concat = marks.join  # type: ignore[assignment, method-assign, unused-ignore]
    environment.filters["concatenated"] = lambda parts: marks.join(map(str, parts))
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    tree = _TildeAsJoin().visit(environment.parse(source))
    return environment.from_string(tree)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; Jinja's own filter escapes it for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise ChatTemplateError(str(message), param="messages")


def _as_template_error(error: Exception, messages: list[dict[str, object]]) -> ChatTemplateError:
    if isinstance(error, ChatTemplateError):  # the template's own words, by raise_exception
        return error
    null = [str(n) for n, message in enumerate(messages) if message["content"] is None]
    hint = f" (the content of message {', '.join(null)} is null)" if null else ""
    return ChatTemplateError(
        f"the model's chat template cannot render these messages: {error}{hint}", param="messages"
    )
