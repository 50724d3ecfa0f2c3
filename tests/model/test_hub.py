"""Pulling from the Hugging Face Hub and finding in its cache, against a hub on the loopback."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("huggingface_hub", reason="huggingface_hub is missing; add octavo[hf]")

from huggingface_hub import constants, utils

from fake_hub import FakeHub, Repo
from octavo.errors import DownloadError, ModelError, ModelNotFoundError
from octavo.model.remote import hub
from octavo.model.store import ensure_model, find_model, list_models, pull

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = b"GGUF, let us say. " * 100_000  # 1.8 MB: more than one read
FOLDER = {
    "config.json": b"{}",
    "tokenizer.json": b'{"version": "1.0"}',
    "model.safetensors": b"weights",
    "README.md": b"Hello",
    "pytorch_model.bin": b"pickle",
}
QUANTS = {"m-Q8_0.gguf": b"8" * 8000, "m-Q4_K_M.gguf": b"4" * 4000, "m-F16.gguf": b"f" * 16000}


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    """Have huggingface_hub ask no proxy, and leave no socket behind."""
    close = getattr(utils, "close_session", None) or utils.reset_sessions  # before 1.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1,localhost")
        close()
        yield
        close()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub, an empty cache, and a huggingface_hub that was imported with settings for both."""
    server = FakeHub()
    settings = {
        "ENDPOINT": server.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": server.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
        "HF_TOKEN_PATH": str(tmp_path / "token"),
        "HF_STORED_TOKENS_PATH": str(tmp_path / "tokens"),
    }
    for key, value in settings.items():
        monkeypatch.setattr(constants, key, value, raising=False)  # older versions have fewer
    template = "huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE"  # a copy, before 1.0
    monkeypatch.setattr(template, settings["HUGGINGFACE_CO_URL_TEMPLATE"], raising=False)
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "home"))
    yield server
    server.close()


@pytest.fixture
def cache(fake: FakeHub) -> Path:
    return Path(constants.HF_HUB_CACHE)


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def failure(name: str, kind: type[ModelError] = DownloadError, *, force: bool = False) -> str:
    """Pull what must fail and return the message."""
    with pytest.raises(ModelError) as caught:
        pull(name, force=force)
    assert type(caught.value) is kind
    return str(caught.value)


# One file


def test_the_only_gguf_is_pulled_and_then_found_without_the_hub(
    fake: FakeHub, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fake.repos["org/one"] = Repo({"README.md": b"Hello", "m-Q4_0.gguf": MODEL})
    assert find_model("hf:org/one") is None
    assert fake.requests == []
    path = pull("hf:org/one")
    assert path.read_bytes() == MODEL
    assert path.name == "m-Q4_0.gguf"
    assert cache in path.parents
    assert len(fake.downloads()) == 1
    assert capfd.readouterr() == ("", "")  # quiet where stderr is no terminal
    asked = len(fake.requests)
    for name in ("hf:org/one", "hf:org/one:q4_0", "hf:org/one:m-Q4_0.gguf", "hf:org/one@main"):
        assert find_model(name) == ensure_model(name) == path
    assert find_model("hf:org/one:Q8_0") is None
    assert find_model("hf:org/one@v1") is None
    assert find_model("hf:org/one:safetensors") is None
    assert len(fake.requests) == asked


def test_a_second_pull_asks_and_downloads_nothing(fake: FakeHub) -> None:
    fake.repos["org/one"] = Repo({"m.gguf": MODEL})
    path = pull("hf:org/one")
    asked = len(fake.requests)
    assert pull("hf:org/one") == path
    assert len(fake.requests) > asked
    assert len(fake.downloads()) == 1
    assert pull("hf:org/one", force=True) == path
    assert len(fake.downloads()) == 2


def test_what_is_not_here_is_pulled_when_it_is_opened(fake: FakeHub) -> None:
    fake.repos["org/one"] = Repo({"m.gguf": MODEL})
    assert ensure_model("hf:org/one").read_bytes() == MODEL


def test_a_changed_repository_is_pulled_anew_and_unchanged_files_are_kept(fake: FakeHub) -> None:
    fake.repos["org/one"] = Repo({"m.gguf": MODEL})
    first = pull("hf:org/one")
    fake.repos["org/one"] = Repo({"m.gguf": MODEL, "README.md": b"Hello"})
    assert find_model("hf:org/one") == first  # nobody asked
    second = pull("hf:org/one")
    assert second != first
    assert len(fake.downloads()) == 1
    assert find_model("hf:org/one") == second


# A choice


def test_several_and_no_choice_lists_them_with_sizes_and_the_command(fake: FakeHub) -> None:
    fake.repos["org/many"] = Repo(QUANTS | FOLDER)
    message = failure("hf:org/many", ModelNotFoundError)
    lines = [line.split() for line in message.splitlines()]
    assert [line[-1] for line in lines[1:4]] == [
        "hf:org/many:Q4_K_M",
        "hf:org/many:Q8_0",
        "hf:org/many:F16",
    ]
    assert message.endswith("octavo pull hf:org/many:Q4_K_M")
    assert fake.downloads() == []
    message = failure("hf:org/many:Q2_K", ModelNotFoundError)
    assert "hf:org/many has no Q2_K; it has:\n" in message
    assert "hf:org/many:Q8_0" in message
    message = failure("hf:org/many:x.gguf", ModelNotFoundError)
    assert "has no x.gguf" in message


def test_a_quant_takes_its_file_alone(fake: FakeHub) -> None:
    fake.repos["org/many"] = Repo(QUANTS)
    path = pull("hf:org/many:q4_k_m")
    assert path.read_bytes() == QUANTS["m-Q4_K_M.gguf"]
    assert len(fake.downloads()) == 1
    assert find_model("hf:org/many") == path  # the only one that is here
    pull("hf:org/many:m-F16.gguf")
    with pytest.raises(ModelNotFoundError, match="several models in the cache") as caught:
        ensure_model("hf:org/many")
    assert "hf:org/many:Q4_K_M" in str(caught.value)
    assert "Q8_0" not in str(caught.value)


def test_a_path_in_a_folder(fake: FakeHub) -> None:
    fake.repos["org/deep"] = Repo({"a/b/m.gguf": MODEL, "a/n.gguf": b"n"})
    path = pull("hf:org/deep:a/b/m.gguf")
    assert path.read_bytes() == MODEL
    assert path.parts[-3:] == ("a", "b", "m.gguf")
    assert find_model("hf:org/deep:a/b/m.gguf") == find_model("hf:org/deep:m.gguf") == path


def test_a_revision_is_another_model(fake: FakeHub) -> None:
    repo = Repo({"m.gguf": MODEL}, revisions=("main", "v1", "refs/pr/2"))
    fake.repos["org/one"] = repo
    names = ("hf:org/one@v1", "hf:org/one@refs/pr/2", f"hf:org/one@{repo.commit}")
    for name in names:
        assert find_model(name) is None or name == names[2]
        assert pull(name) == find_model(name)
    assert find_model("hf:org/one") is None
    assert len(fake.downloads()) == 1
    message = failure("hf:org/one@v2", ModelNotFoundError)
    assert "no revision v2" in message


def test_a_split_file_is_refused_with_the_way_out(fake: FakeHub) -> None:
    parts = {f"m-F16-0000{part}-of-00002.gguf": b"x" for part in (1, 2)}
    fake.repos["org/split"] = Repo(parts)
    for name in ("hf:org/split", "hf:org/split:F16"):
        message = failure(name, ModelNotFoundError)
        assert "split in 2 parts" in message
        assert "llama-gguf-split --merge" in message
    assert fake.downloads() == []


# A folder


def test_a_folder_is_pulled_without_what_is_not_needed(fake: FakeHub) -> None:
    fake.repos["org/folder"] = Repo(FOLDER)
    path = pull("hf:org/folder")
    assert sorted(item.name for item in path.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert (path / "model.safetensors").read_bytes() == b"weights"
    assert find_model("hf:org/folder") == find_model(path) == path
    downloads = len(fake.downloads())
    assert pull("hf:org/folder") == path
    assert len(fake.downloads()) == downloads
    (path / "tokenizer.json").unlink()
    assert find_model("hf:org/folder") is None  # no longer whole
    assert ensure_model("hf:org/folder") == path


def test_shards_come_with_their_index(fake: FakeHub) -> None:
    shards = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    index = json.dumps({"weight_map": {"a": shards[0], "b": shards[1]}}).encode()
    small = {"config.json": b"{}", "tokenizer.model": b"t"}
    large = {shards[0]: b"1", shards[1]: b"2", "consolidated.safetensors": b"3"}
    fake.repos["org/shards"] = Repo({"model.safetensors.index.json": index} | small | large)
    path = pull("hf:org/shards")
    assert {item.name for item in path.iterdir()} == {
        "model.safetensors.index.json",
        *shards,
        *small,
    }
    assert find_model("hf:org/shards") == path
    (path / shards[1]).unlink()
    assert find_model("hf:org/shards") is None


def test_a_folder_beside_ggufs_is_had_by_saying_so(fake: FakeHub) -> None:
    fake.repos["org/both"] = Repo(FOLDER | {"m-Q4_0.gguf": MODEL})
    folder = pull("hf:org/both:safetensors")
    assert folder.is_dir()
    assert find_model("hf:org/both:safetensors") == folder
    assert pull("hf:org/both").name == "m-Q4_0.gguf"
    assert [model.name for model in list_models(known={})] == [
        "hf:org/both:safetensors",
        "hf:org/both:m-Q4_0.gguf",
    ]


def test_a_repository_of_pickles_is_refused(fake: FakeHub) -> None:
    fake.repos["org/bin"] = Repo({"config.json": b"{}", "pytorch_model.bin": b"p"})
    assert "only as pytorch_model.bin" in failure("hf:org/bin", ModelNotFoundError)
    assert fake.downloads() == []


def test_a_local_folder_with_a_config_is_a_model(tmp_path: Path) -> None:
    assert find_model(tmp_path) is None
    with pytest.raises(ModelNotFoundError, match="directory without a config"):
        ensure_model(tmp_path)
    (tmp_path / "config.json").touch()
    assert find_model(tmp_path) == ensure_model(str(tmp_path)) == tmp_path


# The bytes


def test_bars_are_silenced_when_asked_and_only_for_that_pull(
    fake: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled

    fake.repos["org/one"] = Repo({"m.gguf": MODEL})
    path = pull("hf:org/one")
    silent = []

    def download(*args: object, **kwargs: object) -> str:
        silent.append(are_progress_bars_disabled())
        return str(path)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    before = are_progress_bars_disabled()
    for progress in (None, False, True):
        pull("hf:org/one", progress=progress)
        assert are_progress_bars_disabled() == before
    assert silent == [before, True, before]


def test_a_broken_transfer_is_resumed_where_it_broke(
    fake: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)  # what breaks off is lost
    fake.repos["org/one"] = Repo({"m.gguf": MODEL})
    fake.break_once_after = len(MODEL) // 2
    try:
        pull("hf:org/one")
    except DownloadError as error:  # older versions leave resuming to the next pull
        assert "pull again" in str(error)  # noqa: PT017
    assert pull("hf:org/one").read_bytes() == MODEL
    ranges = [
        wanted for method, path, _, wanted in fake.requests if method == "GET" and "/large/" in path
    ]
    assert len(ranges) == 2
    assert ranges[0] is None
    start = int(str(ranges[1]).removeprefix("bytes=").removesuffix("-"))
    assert 0 < start <= len(MODEL) // 2


def test_other_bytes_than_the_hash_says_are_refused_and_removed(fake: FakeHub, cache: Path) -> None:
    fake.repos["org/one"] = Repo({"m.gguf": MODEL})
    fake.serves_instead = b"?" + MODEL[1:]
    message = failure("hf:org/one")
    assert "has hash" in message
    assert "HF_ENDPOINT" in message
    assert find_model("hf:org/one") is None
    assert not [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size > 1000]
    fake.serves_instead = None
    assert pull("hf:org/one").read_bytes() == MODEL


def test_a_small_file_is_checked_too_and_a_damaged_one_fetched_again(
    fake: FakeHub, caplog: pytest.LogCaptureFixture
) -> None:
    fake.repos["org/folder"] = Repo(FOLDER)
    path = pull("hf:org/folder")
    (path / "tokenizer.json").resolve().write_bytes(b'{"version": "6.6"}')
    with caplog.at_level(logging.WARNING):
        pull("hf:org/folder")
    assert "tokenizer.json is damaged" in caplog.text
    assert (path / "tokenizer.json").read_bytes() == FOLDER["tokenizer.json"]


def test_a_short_file_is_refused(fake: FakeHub) -> None:
    fake.repos["org/one"] = Repo({"m.gguf": MODEL})
    fake.serves_instead = MODEL[:-1]
    assert "pull again" in failure("hf:org/one")
    assert find_model("hf:org/one") is None


def test_a_repository_that_moves_meanwhile_is_noticed(
    fake: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.repos["org/one"] = Repo({"m.gguf": MODEL})
    before = hub._require_space

    def move(*args: object, **kwargs: object) -> None:
        fake.repos["org/one"] = Repo({"m.gguf": MODEL, "x": b""})
        before(*args, **kwargs)

    monkeypatch.setattr(hub, "_require_space", move)
    assert "changed meanwhile" in failure("hf:org/one")


# Who may


def test_a_token_is_sent_to_the_hub_and_not_to_its_storage(
    fake: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", fake.token)
    fake.repos["org/gated"] = Repo({"m.gguf": MODEL}, refusal=(403, "GatedRepo"))
    pull("hf:org/gated")
    for _, path, authorization, _ in fake.requests:
        assert authorization == (None if "/large/" in path else f"Bearer {fake.token}")


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_repository_says_how_to_get_in(
    fake: FakeHub, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    fake.repos["org/gated"] = Repo({"m.gguf": MODEL}, refusal=(status, "GatedRepo"))
    message = failure("hf:org/gated")
    assert f"accept its terms at {fake.endpoint}/org/gated" in message
    assert "set HF_TOKEN" in message
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    message = failure("hf:org/gated")
    assert "did not suffice" in message
    assert "hf_wrong" not in message


def test_a_repository_that_does_not_exist_may_be_private(fake: FakeHub) -> None:
    message = failure("hf:org/nothing", ModelNotFoundError)
    assert "no repository org/nothing, or it is private" in message
    assert "HF_TOKEN" in message


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, DownloadError, "set HF_TOKEN"),
        (403, DownloadError, "refuses access"),
        (404, ModelNotFoundError, "HF_ENDPOINT"),
        (429, DownloadError, "too many requests"),
        (500, DownloadError, "try again later"),
        (200, DownloadError, "HF_ENDPOINT"),  # some page that is no hub's answer
    ],
)
def test_a_hub_that_answers_otherwise(
    fake: FakeHub, status: int, kind: type[ModelError], words: str
) -> None:
    fake.status = status
    assert words in failure("hf:org/one", kind)


# Without a network


def test_offline_takes_what_is_here_and_says_what_is_not(
    fake: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.repos["org/one"] = Repo({"m.gguf": MODEL})
    path = pull("hf:org/one")
    asked = len(fake.requests)
    go_offline(monkeypatch)
    assert ensure_model("hf:org/one") == pull("hf:org/one") == path
    for message in (failure("hf:org/two"), failure("hf:org/one", force=True)):
        assert "HF_HUB_OFFLINE" in message
    with pytest.raises(DownloadError, match="not in the cache"):
        ensure_model("hf:org/two")
    assert len(fake.requests) == asked


def test_a_hub_that_is_not_there(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    message = failure("hf:org/one")
    assert "http://127.0.0.1:1" in message
    assert "Check the network" in message


def test_no_package_is_no_traceback(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install 'octavo[hf]'" in failure("hf:org/one")
    with pytest.raises(DownloadError, match="octavo"):
        find_model("hf:org/one")


# The disk


def test_too_little_space_is_said_before_anything_is_fetched(
    fake: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.repos["org/one"] = Repo({"m.gguf": MODEL})
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda path: usage)
    message = failure("hf:org/one")
    assert "needs 1.7 MiB" in message
    assert "HF_HUB_CACHE" in message
    assert fake.downloads() == []


@pytest.mark.parametrize("where", ["cache", "fetch"])
def test_a_disk_that_fills_or_refuses(
    fake: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    fake.repos["org/one"] = Repo({"m.gguf": MODEL})
    if where == "cache":
        cache.write_bytes(b"")  # a file where the folder should be
        words = "Not a directory"
    else:
        words = "No space left on device"

        def fill(*args: object, **kwargs: object) -> str:
            raise OSError(28, words)

        monkeypatch.setattr("huggingface_hub.hf_hub_download", fill)
    message = failure("hf:org/one")
    assert words in message
    assert "set HF_HUB_CACHE" in message


def test_a_record_that_cannot_be_kept_costs_the_listing_only(
    fake: FakeHub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake.repos["org/one"] = Repo({"m.gguf": MODEL})
    (tmp_path / "home").touch()
    with caplog.at_level(logging.WARNING):
        assert pull("hf:org/one").is_file()
    assert "could not be noted" in caplog.text
    assert list_models(known={}) == []


# Listing


def test_the_listing_shows_what_was_pulled_and_is_still_here(fake: FakeHub) -> None:
    fake.repos["org/one"] = Repo({"m-Q4_0.gguf": MODEL})
    fake.repos["org/folder"] = Repo(FOLDER)
    for name in ("hf:org/one:q4_0", "hf:org/one", "hf:org/folder"):
        pull(name)
    one, folder = list_models(known={})
    assert (one.name, one.num_bytes) == ("hf:org/one:m-Q4_0.gguf", len(MODEL))
    assert (folder.name, folder.num_bytes) == ("hf:org/folder", 2 + 18 + 7)
    assert one.pulled
    assert one.known is None
    assert ensure_model(one.name) == one.path
    one.path.resolve().unlink()  # as 'hf cache rm' does; a link to nothing stays
    assert [model.name for model in list_models(known={})] == ["hf:org/folder"]


# The settings, as a process reads them

PULL = """
import sys
from octavo.model.store import find_model, list_models, pull
assert list_models(known={}) == []
assert "huggingface_hub" not in sys.modules  # imported only when used
print(pull(sys.argv[1]))
"""
OPEN = """
import sys
from octavo.model.store import ensure_model
print(ensure_model(sys.argv[1]))
"""


def test_the_environment_is_honoured(fake: FakeHub, tmp_path: Path) -> None:
    fake.repos["org/gated"] = Repo({"m.gguf": MODEL}, refusal=(401, "GatedRepo"))
    settings = {
        "HF_ENDPOINT": fake.endpoint,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_TOKEN": fake.token,
        "OCTAVO_HOME": str(tmp_path / "other"),
    }
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("HF_", "HUGGINGFACE", "TRANSFORMERS_"))
    }

    def run(script: str, **more: str) -> str:
        command = [sys.executable, "-c", script, "hf:org/gated"]
        environment = kept | settings | more
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout.strip()

    path = Path(run(PULL))
    assert path.read_bytes() == MODEL
    assert (tmp_path / "hf" / "hub") in path.parents
    asked = len(fake.requests)
    assert run(OPEN, HF_HUB_OFFLINE="1") == run(OPEN, HF_ENDPOINT="http://127.0.0.1:1") == str(path)
    assert len(fake.requests) == asked
