"""The documents are true: their snippets are in the source, their links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def test_every_idea_shows_lines_that_really_run():
    parts = re.split(r"^## ", (ROOT / "docs/ideas.md").read_text(), flags=re.M)[1:]
    assert len(parts) >= 8
    num_snippets = 0
    for part in parts:
        links = re.findall(r"\]\(\.\./(src/[^)]+)\)", part)
        for snippet in re.findall(r"```python\n(.*?)```", part, flags=re.S):
            source = squeezed((ROOT / links[-1]).read_text())
            assert squeezed(snippet) in source, f"not in {links[-1]}:\n{snippet}"
            num_snippets += 1
    assert num_snippets >= 8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text()):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_readme_tree_names_every_source_file():
    """The tree in the README has one line for each module, and no line for one that is gone."""
    readme = (ROOT / "README.md").read_text()
    tree = re.search(r"```\nsrc/octavo/\n(.*?)```", readme, flags=re.S)
    assert tree, "README.md has no file tree"
    listed, folders = set(), []
    for line in tree[1].splitlines():
        indent, name, job = re.fullmatch(r"( *)(\S+)(?: +(.*))?", line).groups()
        folders = folders[: len(indent) // 2 - 1]
        if name.endswith("/"):
            folders.append(name)
        else:
            assert job, f"{name} has no job"
            listed.add("".join(folders) + name)
    package = ROOT / "src/octavo"
    existing = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if path.name != "__init__.py" or path.parent.name in ("octavo", "policies")
    }
    assert listed == existing


def test_ci_runs_the_second_command_of_the_readme():
    command = "python3 -m venv .venv && .venv/bin/pip install -q -c requirements.lock -e '.[dev]'"
    command += " && scripts/check"
    for name in ("README.md", "CONTRIBUTING.md", ".ci/run"):
        assert command in (ROOT / name).read_text(), name
