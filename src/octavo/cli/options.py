"""Flags out of dataclasses: the fields of EngineConfig and SamplingParams are the flags' names.

A command asks for them by a decorator and gets them as one dict, ready to be passed on:

    @engine_options()
    def command(prompt: str, *, engine: dict[str, Any]) -> None:
        LLM(**engine)

Knows no command.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.config import EngineConfig
from octavo.sampling.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Command = Callable[..., None]

_SHORT = {"model": ("--model", "-m")}

# `seed` is a flag of the engine already; `run`, which answers one request, uses that.
_SAMPLING_HELP = {
    "temperature": "Divides the logits; 0 takes the likeliest token.",
    "top_p": "Keep the likeliest tokens whose probabilities reach this sum; 1 is off.",
    "top_k": "Keep this many of the likeliest tokens; 0 or -1 is off.",
    "min_p": "Keep tokens at least this fraction as likely as the likeliest; 0 is off.",
    "max_tokens": "Most tokens to generate.",
    "min_tokens": "This many tokens come before anything can end the answer.",
    "stop": "A string that ends the answer; may be given several times.",
    "ignore_eos": "The model's own end token does not end the answer.",
    "repetition_penalty": "Makes tokens seen in prompt or answer less likely; 1 is off.",
    "frequency_penalty": "Taken off a logit once per occurrence in the answer.",
    "presence_penalty": "Taken off the logits of tokens that occur in the answer.",
}


def engine_options(
    help_texts: Mapping[str, str] | None = None, **defaults: Any
) -> Callable[[Command], Command]:
    """Give a command every setting of the engine as a flag; it gets them as ``engine``.

    ``help_texts``, by name, and ``defaults`` are this command's own, where `EngineConfig`'s would
    not suit it.
    """
    help_texts = help_texts or {}
    hints = typing.get_type_hints(EngineConfig)
    flags = [
        _flag(
            field.name,
            hints[field.name],
            defaults.get(field.name, field.default),
            help_texts.get(field.name, field.metadata["help"]),
        )
        for field in dataclasses.fields(EngineConfig)
    ]
    return functools.partial(_with_flags, group="engine", flags=flags)


def sampling_options(**defaults: Any) -> Callable[[Command], Command]:
    """Give a command the sampling parameters that suit a command line, as ``sampling``."""
    hints = typing.get_type_hints(SamplingParams)
    fields = {field.name: field for field in dataclasses.fields(SamplingParams)}
    flags = []
    for name, help_text in _SAMPLING_HELP.items():
        kind = list[str] | None if name == "stop" else hints[name]
        default = defaults.get(name, fields[name].default)
        flags.append(_flag(name, kind, default, help_text))
    return functools.partial(_with_flags, group="sampling", flags=flags)


def settings_options(settings: type[Any], group: str) -> Callable[[Command], Command]:
    """Give a command every field of a dataclass as a flag; it gets them as ``group``.

    A field's metadata has its ``help``, and may have ``names`` in place of its own and more of
    typer's ``option``.
    """
    hints = typing.get_type_hints(settings)
    flags = []
    for field in dataclasses.fields(settings):
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        names, option = field.metadata.get("names", ()), field.metadata.get("option", {})
        made = typer.Option(*names, help=field.metadata["help"], **option)
        flags.append(
            Parameter(
                field.name, Parameter.KEYWORD_ONLY, default=default,
                annotation=Annotated[hints[field.name], made],
            )
        )  # fmt: skip
    return functools.partial(_with_flags, group=group, flags=flags)


def _flag(name: str, kind: Any, default: Any, help_text: str) -> Parameter:
    """Return a keyword parameter from which typer makes the flag of a field."""
    choices = typing.get_args(kind)
    if str in choices:  # such as int | str | None: the field itself reads the text
        kind = str | None if type(None) in choices else str
    option = typer.Option(*_SHORT.get(name, ()), help=help_text)
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def _with_flags(command: Command, *, group: str, flags: Sequence[Parameter]) -> Command:
    """Return ``command`` with ``flags`` in place of its parameter ``group``, a dict of them."""
    signature = inspect.signature(command)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != group]
    assert len(own) < len(signature.parameters), f"{command.__name__} takes no {group!r}"

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        gathered = {flag.name: values.pop(flag.name) for flag in flags}
        command(**values, **{group: gathered})

    return with_signature(wrapper, [*own, *flags])


def with_signature(command: Command, parameters: Sequence[Parameter]) -> Command:
    """Let ``command`` tell typer, which asks both ways, that it takes ``parameters``."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
