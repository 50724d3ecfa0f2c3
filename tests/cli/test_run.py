"""`octavo run`: text to stdout, the rest to stderr, and clean ends."""

import json
import signal

import pytest

from octavo.cli.terminal import harmless


def ask(octavo, *args, **more):
    result = octavo("run", *args, "--json", **more)
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_json_tells_everything(octavo, tiny):
    answer = ask(octavo, "hello", *tiny, "--max-tokens", "5", "--ignore-eos", "--seed", "7")
    assert len(answer["token_ids"]) == answer["num_output_tokens"] == 5
    assert answer["finish_reason"] == "length"
    assert answer["seed"] == 7
    assert answer["num_cached_tokens"] == 0
    assert 0 < answer["ttft_s"] <= answer["total_s"]
    assert answer["tokens_per_s"] > 0


def test_the_seed_repeats_an_answer(octavo, tiny):
    flags = (*tiny, "--max-tokens", "12", "--temperature", "1")
    first, again, other = (ask(octavo, "hello", *flags, "--seed", seed) for seed in (1, 1, 2))
    assert first["token_ids"] == again["token_ids"] != other["token_ids"]


def test_text_is_what_json_says(octavo, tiny):
    flags = ("hello", *tiny, "--max-tokens", "6", "--ignore-eos")
    result = octavo("run", *flags)
    assert result.out == ask(octavo, *flags)["text"] + "\n"
    assert result.err == "note: cut after 6 tokens; --max-tokens allows more\n"


def test_verbose_tells_choices_and_numbers(octavo, tiny):
    result = octavo("run", "hello", *tiny, "--max-tokens", "4", "--ignore-eos", "-v")
    assert "KV cache: 64 blocks" in result.err
    assert "[4 tokens, " in result.err
    assert "TTFT" in result.err


def test_the_template_wraps_the_prompt_unless_raw(octavo, tiny):
    chat, system, raw = (
        ask(octavo, "hello", *tiny, "--max-tokens", "1", *more)["num_prompt_tokens"]
        for more in ((), ("--system", "Be brief."), ("--raw",))
    )
    assert raw < chat < system


def test_stdin_is_the_prompt(octavo, tiny):
    flags = (*tiny, "--max-tokens", "4", "--temperature", "0")
    given = ask(octavo, "hello there", *flags)
    for prompt in ((), ("-",)):
        piped = ask(octavo, *prompt, *flags, stdin="hello there\n")
        assert piped["num_prompt_tokens"] == given["num_prompt_tokens"]
        assert piped["token_ids"] == given["token_ids"]


def test_stop_may_be_repeated(octavo, tiny):
    flags = ("hello", *tiny, "--raw", "--temperature", "0", "--ignore-eos", "--max-tokens", "40")
    text = ask(octavo, *flags)["text"]
    stop = text[5:7]
    answer = ask(octavo, *flags, "--stop", "no such text", "--stop", stop)
    assert answer["text"] == text[: text.index(stop)]
    assert answer["stop_reason"] == stop


def test_the_end_of_the_context_is_told(octavo, tiny):
    flags = (*tiny, "--raw", "--ignore-eos", "--max-model-len", "20")
    assert "the context of 20 tokens is full" in octavo("run", "hello", *flags).err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("",), "the prompt is empty"),
        (("-",), "the prompt is empty"),
        (("hi", "--raw", "--system", "x"), "--raw"),
        (("a" * 2000,), "tokens"),
    ],
)
def test_a_prompt_that_cannot_be_answered_exits_2(octavo, tiny, args, message):
    result = octavo("run", *args, *tiny)
    assert result.code == 2
    assert result.err.startswith("error: ")
    assert message in result.err


def test_no_tokens_asked_for_is_not_cut(octavo, tiny):
    result = octavo("run", "hello", *tiny, "--max-tokens", "0")
    assert (result.code, result.out, result.err) == (0, "\n", "")


@pytest.mark.parametrize("args", [("a\udcff",), ("hi", "--system", "a\udcff"), ("-",)])
def test_what_is_not_utf8_is_called_so(octavo, args):
    result = octavo("run", *args, stdin="a\udcff")
    assert result.code == 2
    assert "is not UTF-8: byte 0xff at character 1" in result.err


def test_the_seed_is_the_requests_own(octavo):
    assert "The key of the answer's randomness." in octavo("run", "--help").out


def test_interrupt_exits_130_in_silence(start, long_tiny):
    with start("run", "hi", *long_tiny, "--ignore-eos", "--max-tokens", "8000") as process:
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == ""


def test_a_closed_pipe_is_silent(start, long_tiny):
    with start("run", "hi", *long_tiny, "--ignore-eos", "--max-tokens", "8000") as process:
        assert process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(timeout=20) == 141
    assert err == ""


def test_harmless_leaves_no_control_character():
    assert harmless("a\x1b[2Jb\r\x9b\x7f\tc\nd é") == "a�[2Jb���\tc\nd é"


def test_a_users_policy_that_fails_is_one_line(octavo, tiny, tmp_path, monkeypatch):
    (tmp_path / "failing_for_test.py").write_text(
        "from octavo.cache.policies.lru import LRU\n"
        "class Fails(LRU):\n"
        "    name = 'fails'\n"
        "    def on_insert(self, keys, parent):\n"
        "        raise KeyError('lost')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    flags = ("--eviction-policy", "failing_for_test:Fails", "--max-tokens", "40", "--ignore-eos")
    result = octavo("run", "hello " * 20, *tiny, *flags)
    assert result.code == 2
    told = "error: the policy 'fails' of failing_for_test failed with KeyError: 'lost'; docs/"
    assert result.err.splitlines()[-1].startswith(told)
    assert "Traceback" not in result.err
