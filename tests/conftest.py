"""Fixtures that every part's tests share: the real model, and a tiny one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# Neither test modules nor benchmarks are a package; this lets tests import both by name.
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parent))

from octavo.model.store import find_model, octavo_home
from tiny_model import tiny_model

# Tests move OCTAVO_HOME; what is compiled stays in one folder, and lasts from run to run.
os.environ.setdefault("OCTAVO_COMPILED", str(octavo_home() / "compiled"))

# A slow machine is no failure, and examples that import or compile first are always slow.
settings.register_profile("octavo", deadline=None)
settings.load_profile("octavo")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2's file; the test is skipped without it, or fails under OCTAVO_REQUIRE_MODEL=1."""
    path = find_model("smollm2")
    if path is None:
        reason = "smollm2 is not on this machine; run 'octavo pull smollm2'"
        if os.environ.get("OCTAVO_REQUIRE_MODEL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return path


@pytest.fixture(scope="session")
def kernels() -> None:
    """The kernels are compiled, so that no command says on stderr that it compiles them."""
    from backends.cpu.models import spec, weights
    from octavo.backends.cpu.backend import CpuBackend

    CpuBackend(spec(), weights(spec()), num_blocks=1).prepare()


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny F32 Llama with tied embeddings; see `tiny_model` for others."""
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf")
