"""The examples run, on the default model where they need one."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from octavo import LLM
from server.conftest import SETTINGS, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def served(smollm2_path: Path) -> Iterator[Server]:
    server = Server(
        LLM(smollm2_path, **{**SETTINGS, "num_kv_blocks": 200, "max_model_len": 2048}), 1024, ()
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_agent_calls_the_right_tool_and_answers_with_its_result(served: Server) -> None:
    agent, said = example("agent"), []
    with served.client() as client:
        warm = agent.run(client, "How warm is it in Paris?", model="tiny", say=said.append)
        total = agent.run(client, "What is 17 plus 25?", model="tiny", say=said.append)
    assert said == [
        '  get_temperature({"city": "Paris"}) -> It is 21 degrees in Paris.',
        '  add({"a": 17, "b": 25}) -> 42',
    ]
    assert "21" in warm
    assert "42" in total
    served.check_idle()
