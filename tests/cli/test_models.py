"""`octavo pull`, `models` and `inspect`."""

import json
import shutil

import pytest

from gguf_as_folder import as_folder
from octavo.model import store
from tiny_model import tiny_model


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path))
    (tmp_path / "models").mkdir()
    return tmp_path


def test_pull_prints_the_path(octavo, monkeypatch, tmp_path):
    calls = []

    def pull(name, *, force=False):
        calls.append((name, force))
        return tmp_path / "model.gguf"

    monkeypatch.setattr(store, "pull", pull)
    result = octavo("pull", "smollm2", "--force")
    assert result.out == f"{tmp_path / 'model.gguf'}\n"
    assert calls == [("smollm2", True)]


def test_pull_of_an_unknown_model_exits_3(octavo, home):
    result = octavo("pull", "nonesuch")
    assert result.code == 3
    assert "smollm2" in result.err


def test_models_lists_known_and_own_files(octavo, home, tiny_model_path):
    shutil.copy(tiny_model_path, home / "models" / "mine.gguf")
    rows = octavo("models").out.splitlines()
    assert [row.split()[0] for row in rows] == ["name", "smollm2", "mine"]
    assert "octavo pull smollm2" in rows[1]
    assert str(home) in rows[2]
    listing = json.loads(octavo("models", "--json").out)
    assert [(entry["name"], entry["pulled"]) for entry in listing] == [
        ("smollm2", False),
        ("mine", True),
    ]


def test_inspect_shows_the_model(octavo, tiny_model_path):
    out = octavo("inspect", tiny_model_path).out
    assert "\x1b" not in out
    for expected in (
        "llama",
        "context_length",
        "512",
        "F32",
        "gpt2, rules smollm",
        "256 bytes a token; 1 GiB holds 4,194,304 tokens",
        "<|im_start|>",
    ):
        assert expected in out
    assert "blk.0.attn_q.weight" not in out
    assert "blk.0.attn_q.weight" in octavo("inspect", tiny_model_path, "--tensors").out


def test_inspect_json(octavo, tiny_model_path):
    described = json.loads(octavo("inspect", tiny_model_path, "--json").out)
    assert described["architecture"] == "llama"
    assert described["kv_bytes_per_token_float16"] == 256


def test_inspect_fetches_nothing(octavo, home):
    result = octavo("inspect", "smollm2")
    assert result.code == 3
    assert "octavo pull smollm2" in result.err
    assert octavo("inspect", "nonesuch").code == 3


def test_a_file_cannot_steer_the_terminal(octavo, tmp_path):
    path = tiny_model(tmp_path / "odd.gguf", extra_metadata=[("general.license", "\x1b[2J[red]x")])
    assert "�[2J[red]x" in octavo("inspect", path).out


def test_inspect_shows_a_folder(octavo, tiny_model_path, tmp_path):
    folder = as_folder(tiny_model_path, tmp_path / "folder")
    out = octavo("inspect", folder).out
    for expected in ("safetensors folder", "LlamaForCausalLM", "yes", "num_hidden_layers", "BPE"):
        assert expected in out
    described = json.loads(octavo("inspect", folder, "--json").out)
    assert described["kv_bytes_per_token_float16"] == 256


def test_inspect_looks_for_a_hub_name_in_the_cache_alone(
    octavo, tiny_model_path, tmp_path, monkeypatch
):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(store, "pull", lambda *_args, **_kwargs: pytest.fail("it was fetched"))
    result = octavo("inspect", "hf:org/repo")
    assert result.code == 3
    assert "octavo pull hf:org/repo" in result.err
    repository, commit = tmp_path / "models--org--repo", "0" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    as_folder(tiny_model_path, repository / "snapshots" / commit)
    assert "LlamaForCausalLM" in octavo("inspect", "hf:org/repo").out
