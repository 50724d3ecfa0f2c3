"""The policy of docs/write-a-policy.md: it runs as printed and keeps the contract."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cache.policy_contract import PolicyContract
from octavo.cache.policies import find_policy
from octavo.cli.guard import guarded
from octavo.cli.simulate import simulate
from octavo.simulate.plain import PlainCache

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/write-a-policy.md").read_text()
SOURCE = next(code for code in re.findall(r"```python\n(.*?)```", PAGE, re.S) if "victim" in code)


def printed_policy():
    namespace: dict = {"__name__": "second_chance"}
    exec(compile(SOURCE, "docs/write-a-policy.md", "exec"), namespace)
    return namespace["SecondChance"]


class TestSecondChance(PolicyContract):
    policy = printed_policy()

    def test_what_was_hit_goes_round_once(self):
        cache = PlainCache(2, self.policy)
        assert [cache.reference(key) for key in "aabcac"] == [False, True, False, False, True, True]


def test_it_is_about_thirty_lines():
    lines = [line for line in SOURCE.splitlines() if line.strip()]
    assert len(lines) <= 32


def test_it_is_in_the_report(tmp_path, monkeypatch):
    (tmp_path / "second_chance.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    assert find_policy("second_chance:SecondChance").name == "second-chance"
    app = typer.Typer()
    app.command()(guarded(simulate))
    command = re.search(r"octavo simulate (.*?)```", PAGE, re.S)[1].replace("\\\n", " ").split()
    result = CliRunner().invoke(app, [str(ROOT / command[0]), *command[1:], "--json"])
    assert result.exit_code == 0, result.output
    found = {row["policy"]: row["hits"] for row in json.loads(result.stdout)}
    assert found["second-chance"] > 0


@pytest.fixture(autouse=True)
def _forget_the_module():
    yield
    import sys

    sys.modules.pop("second_chance", None)
