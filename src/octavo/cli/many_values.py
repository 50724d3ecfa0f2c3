"""Flags that take every value that follows them, as argparse's nargs='+'; typer's take one."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


def many_values(*flags: str) -> type[TyperCommand]:
    """Return a kind of command whose ``flags`` take all values up to the next flag."""

    class ManyValuesCommand(TyperCommand):
        """Repeats such a flag before each of its values, which is what the parser knows."""

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            spread: list[str] = []
            current, is_first = "", False
            for arg in args:
                if arg.startswith("-"):
                    current, is_first = arg if arg in flags else "", True
                elif current and not is_first:
                    spread.append(current)
                else:
                    is_first = False
                spread.append(arg)
            rest: list[str] = super().parse_args(ctx, spread)
            return rest

    return ManyValuesCommand
