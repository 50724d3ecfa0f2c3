"""`octavo demo`: the line a step, and what its numbers say."""

import json
import re

import pytest

from tiny_model import CHAT_TEMPLATE, tiny_model

LINE = re.compile(
    r"step=(\d+) running=\[([\d, ]*)\] waiting=\[([\d, ]*)\] "
    r"shared_blocks=(\d+) free_blocks=(\d+) evictions=(\d+)"
)
PROMPTS = ("hello world", "hello there", "goodbye")


def steps(out):
    return [match.groups() for line in out.splitlines() if (match := LINE.fullmatch(line))]


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """A model whose template begins every conversation with the same full block."""
    template = "<|im_start|>system\nYou are brief.<|im_end|>\n" + CHAT_TEMPLATE
    path = tiny_model(tmp_path_factory.mktemp("demo") / "tiny.gguf", chat_template=template)
    return ("--model", str(path), "--num-threads", "1")


def test_three_prompts_share_a_block(octavo, flags):
    result = octavo("demo", *flags, "--prompts", *PROMPTS, "--max-new", "16")
    assert result.code == 0
    assert result.err == ""
    *lines, last = steps(result.out)
    assert [int(line[0]) for line in lines] == list(range(1, len(lines) + 1))
    assert lines[0][1:3] == ("0", "1, 2")  # who shares the prefix waits until it is computed
    assert lines[1][1:3] == ("0, 1, 2", "")
    assert int(lines[-1][3]) >= 1
    *answers, end = result.out.splitlines()[len(lines) :]
    assert LINE.fullmatch(end)
    assert last[:3] == (lines[-1][0], "", "")
    assert int(last[3]) >= 1
    assert [answer[:4] for answer in answers] == ["[0] ", "[1] ", "[2] "]


def test_prompts_in_every_spelling(octavo, flags):
    spellings = (
        ("--prompts", "a", "b", "--max-new", "2"),
        ("--prompts", "a", "--max-new", "2", "--prompts", "b"),
        ("--prompts=a", "--prompts=b", "--max-new=2"),
    )
    first, *others = (octavo("demo", *flags, *spelling) for spelling in spellings)
    assert first.code == 0
    assert "'a' ->" in first.out
    assert all(other.out == first.out for other in others)


def test_without_prefix_caching_nothing_is_shared(octavo, flags):
    result = octavo("demo", *flags, "--no-enable-prefix-caching", "--max-new", "3")
    assert {line[3] for line in steps(result.out)} == {"0"}


def test_a_small_pool_evicts(octavo, flags):
    prompts = [f"{i} some words that fill several blocks of the cache" for i in range(6)]
    pool = ("--num-kv-blocks", "12", "--max-num-seqs", "2")
    result = octavo("demo", *flags, *pool, "--prompts", *prompts, "--max-new", "4")
    assert int(steps(result.out)[-1][5]) > 0


def test_json_lines(octavo, flags):
    result = octavo("demo", *flags, "--prompts", *PROMPTS, "--max-new", "3", "--json")
    lines = [json.loads(line) for line in result.out.splitlines()]
    assert lines[-1]["shared_blocks"] >= 1
    assert lines[-1]["running"] == []
    answers = [line for line in lines if "request" in line]
    assert [answer["prompt"] for answer in answers] == list(PROMPTS)
    assert answers[1]["num_cached_tokens"] == 16


def test_the_pool_is_64_blocks_unless_either_size_is_given(octavo, flags):
    def free(*size):
        return int(steps(octavo("demo", *flags, *size, "--max-new", "1").out)[0][4])

    first = free()
    assert first == free("--num-kv-blocks", "64") < 64
    assert free("--kv-cache-memory", str(256 * 16 * 40)) == first - 24


def test_each_default_is_told_once(octavo):
    text = "".join(octavo("demo", "--help").out.split())
    assert text.count("[default:64]") == 2  # the blocks, and --max-num-seqs
    assert "freememory" not in text
