"""Imports go one way, and light parts stay light: DESIGN's arrows, walked through every file."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import octavo

ROOT = Path(octavo.__file__).parent

# A module may import from its own layer and from those before it. The longest prefix counts.
LAYERS = (
    ("errors",),
    ("config", "sampling", "sampling.params"),
    ("engine.request",),
    ("cache",),
    ("engine.scheduler",),
    ("model",),
    ("grammar",),
    ("backends",),
    ("engine.batch", "engine.masks", "engine.memory", "engine.timing", "engine.turns"),
    ("engine.core",),
    ("engine.outputs", "engine.stats", "engine.build", "engine.llm"),
    ("engine.stream", "engine.async_engine"),
    ("openai",),
    ("simulate",),
    ("bench",),
    ("", "cli", "server"),
)
NO_ARRAYS = ("cache", "engine.request", "engine.scheduler", "config", "errors", "sampling.params")
HEAVY = ("numpy", "numba", "tokenizers", "jinja2", "threadpoolctl")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str) -> set[str]:
    """Return what a file imports, wherever in it, but for what only a type checker sees."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(source))
    return found


def layer_of(module: str) -> int:
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        for number, layer in enumerate(LAYERS):
            if prefix in layer:
                return number
    assert module.split(".")[0] not in {"engine"}, f"{module} has no place in LAYERS"
    return len(LAYERS) - 1


def upward_arrows(module: str, source: str) -> list[str]:
    return [
        name
        for name in imports_of(source)
        if name.split(".")[0] == "octavo"
        and layer_of(name.removeprefix("octavo").lstrip(".") or "") > layer_of(module)
    ]


FILES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


@pytest.mark.parametrize("module", FILES, ids=lambda name: name or "octavo")
def test_no_import_goes_upward(module: str) -> None:
    assert upward_arrows(module, FILES[module].read_text()) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("cache.manager", "from octavo.engine.scheduler import Scheduler"),
        ("engine.scheduler", "from octavo.engine.core import EngineCore"),
        ("model.gguf", "def f():\n    from octavo.backends.base import Backend"),
        ("backends.reference", "import octavo.engine.core"),
        ("errors", "from octavo.config import EngineConfig"),
        ("engine.core", "from octavo.cli.main import main"),
        ("cache.keys", "from octavo import LLM"),
    ],
)
def test_an_upward_arrow_would_be_seen(module: str, source: str) -> None:
    assert len(upward_arrows(module, source)) == 1


@pytest.mark.parametrize("module", [name for name in FILES if name.startswith(NO_ARRAYS)], ids=str)
def test_policies_and_the_scheduler_run_without_arrays_and_tokenizers(module: str) -> None:
    names = imports_of(FILES[module].read_text())
    assert not {name.split(".")[0] for name in names} & set(HEAVY)
    assert not any(name.startswith(("octavo.model", "octavo.backends")) for name in names)


@pytest.mark.parametrize(
    "module",
    ["octavo", "octavo.config", "octavo.cache.manager", "octavo.cache.policies",
     "octavo.engine.scheduler"],
)  # fmt: skip
def test_importing_it_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == ""


def test_numba_is_loaded_only_where_an_engine_is_built() -> None:
    code = "import sys, octavo; octavo.LLM, octavo.EngineConfig; print('numba' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "False\n"


def test_every_file_says_its_one_job_in_its_first_line() -> None:
    for path in FILES.values():
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        assert docstring, path
        assert docstring.splitlines()[0].endswith((".", ":", "?")), path
