"""`octavo chat`: turns from a pipe, commands, and a conversation that outgrows the context."""

import re
import signal


def turns(octavo, flags, *lines, code=0):
    result = octavo("chat", *flags, "--ignore-eos", "-v", stdin="".join(f"{x}\n" for x in lines))
    assert result.code == code, result.err
    sizes = re.findall(r"prompt (\d+) tokens, (\d+) cached", result.err)
    return result, [(int(prompt), int(cached)) for prompt, cached in sizes]


def test_every_turn_sees_the_ones_before(octavo, tiny):
    flags = (*tiny, "--max-tokens", "8")
    result, sizes = turns(octavo, flags, "hello there", "", "and again")
    assert len(sizes) == 2
    assert sizes[1][0] > sizes[0][0]
    assert sizes[1][1] >= 16  # the first turn's full blocks come from the cache
    assert result.out.endswith("\n")


def test_reset_and_system(octavo, tiny):
    flags = (*tiny, "--max-tokens", "4")
    _, sizes = turns(
        octavo,
        flags,
        "hello",
        "/reset",
        "hello",
        "/system Be brief.",
        "/reset",
        "hello",
        "/quit",
        "x",
    )
    first, second, third = (prompt for prompt, _ in sizes)
    assert first == second < third


def test_a_command_is_not_sent(octavo, tiny):
    result, sizes = turns(octavo, (*tiny, "--max-tokens", "2"), "/help", "/nonsense")
    assert sizes == []
    assert "/reset" in result.err
    assert "/nonsense is no command" in result.err
    assert result.out == ""


def test_a_blank_sends_a_slash(octavo, tiny):
    _, sizes = turns(octavo, (*tiny, "--max-tokens", "2"), " /help")
    assert len(sizes) == 1


def test_a_conversation_that_no_longer_fits_is_told(octavo, tiny):
    flags = (*tiny, "--max-model-len", "100", "--max-tokens", "30")
    result, sizes = turns(octavo, flags, "hello", "a" * 70, "/reset", "hello", code=1)
    assert "the conversation no longer fits" in result.err
    assert "/reset begins a new one" in result.err
    assert len(sizes) == 2
    assert sizes[0][0] == sizes[1][0]


def test_a_turn_that_is_not_utf8_is_told_and_forgotten(octavo, tiny):
    result, sizes = turns(octavo, (*tiny, "--max-tokens", "2"), "a\udcff", "hello", code=1)
    assert "error: the line is not UTF-8: byte 0xff at character 1" in result.err
    assert len(sizes) == 1


def test_interrupt_stops_only_the_answer(start, long_tiny):
    flags = (*long_tiny, "--ignore-eos", "--max-tokens", "4000")
    with start("chat", *flags) as process:
        process.stdin.write("hello\n")
        process.stdin.flush()
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate("/help\n/quit\n", timeout=20)
    assert process.returncode == 0, err
    assert "note: stopped" in err
    assert "/reset" in err
