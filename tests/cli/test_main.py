"""The command as a whole: help, version, flags, exit codes, and what it imports."""

import dataclasses
import os
import subprocess
import sys

import pytest

from octavo import EngineConfig, SamplingParams, __version__
from octavo.cli import options

COMMANDS = ("run", "chat", "batch", "demo", "pull", "models", "inspect")
ENGINE_COMMANDS = ("run", "chat", "batch", "demo")
HEAVY = ("numpy", "tokenizers", "jinja2", "rich", "octavo.engine", "octavo.model")


def test_help_names_every_command(octavo):
    result = octavo("--help")
    assert result.code == 0
    assert all(f"\n  {command} " in result.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(octavo, command):
    result = octavo(command, "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: octavo {command}")
    assert "--debug" in result.out


@pytest.mark.parametrize("command", ENGINE_COMMANDS)
def test_every_engine_setting_is_a_flag_with_its_help(octavo, command):
    text = octavo(command, "--help").out
    squeezed = "".join(text.split())
    for field in dataclasses.fields(EngineConfig):
        assert f"--{field.name.replace('_', '-')} " in text
        own = options_of_its_own(command, field.name)
        assert own or "".join(field.metadata["help"].split()) in squeezed


def options_of_its_own(command, name):
    return (command, name) in {
        ("run", "seed"),
        ("demo", "num_kv_blocks"),
        ("demo", "kv_cache_memory"),
    }


def test_sampling_flags_are_sampling_parameters():
    known = {field.name for field in dataclasses.fields(SamplingParams)}
    assert set(options._SAMPLING_HELP) <= known


def test_engine_options_pass_every_setting_with_its_default():
    seen = {}

    @options.engine_options(num_kv_blocks=7)
    def command(*, engine):
        seen.update(engine)

    parameters = command.__signature__.parameters
    assert parameters["num_kv_blocks"].default == 7
    command(**{name: parameter.default for name, parameter in parameters.items()})
    assert EngineConfig(**seen) == EngineConfig(num_kv_blocks=7)


def test_version(octavo):
    assert octavo("--version").out == f"octavo {__version__}\n"


def test_no_command_prints_the_help(octavo):
    result = octavo()
    assert "Commands:" in result.out + result.err


def test_help_imports_nothing_heavy():
    code = (
        "import sys, octavo.cli.main as main; sys.argv[1:] = ['run', '--help']\n"
        "try: main.main()\n"
        f"finally: print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_what_must_be_interruptible_imports_nothing_of_weight():
    code = (
        "import sys, octavo.cli.main; print([m for m in ('typer', 'logging') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_interrupt_during_the_imports_is_silent():
    code = (
        "import os, signal, sys, octavo.cli.main as main\n"
        "class Interrupter:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'octavo.cli.app': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupter())\n"
        "main.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "models"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("args", ["models", "--help", "run --help", "inspect {tiny}"])
@pytest.mark.parametrize("closing", ["| true", ">&-"])
def test_an_output_that_nobody_reads_exits_141_in_silence(args, closing, tiny_model_path):
    args = args.format(tiny=tiny_model_path)
    done = shell(f'"$PYTHON" -m octavo {args} {closing}; exit ${{PIPESTATUS[0]}}')
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(("args", "code"), [("models", 0), ("run x --top-p 7", 2), ("fly", 2)])
def test_without_stderr_a_command_works(args, code):
    done = shell(f'"$PYTHON" -m octavo {args} 2>&-')
    assert done.returncode == code
    assert bool(done.stdout) == (code == 0)


def test_without_stdin_there_is_no_prompt():
    done = shell('"$PYTHON" -m octavo run <&-')
    assert done.returncode == 2
    assert done.stderr == "error: the prompt is empty; ask something\n"


def shell(line):
    return subprocess.run(
        ["bash", "-c", line],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("run", "hi", "--no-such-flag"), "--no-such-flag"),
        (("run", "hi", "--block-size", "many"), "--block-size"),
        (("fly",), "fly"),
        (("batch", "in.jsonl"), "OUTPUT"),
    ],
)
def test_bad_usage_exits_2(octavo, args, message):
    result = octavo(*args)
    assert result.code == 2
    assert message in result.err
    assert result.out == ""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--max-num-seqs", "0"), "max_num_seqs is 0"),
        (("--kv-cache-memory", "lots"), "kv_cache_memory is 'lots'"),
        (("--max-model-len", "513"), "max_model_len=513"),
        (("--eviction-policy", "magic"), "magic"),
        (("--backend", "abacus"), "abacus"),
        (("--temperature", "nan"), "temperature=nan"),
        (("--top-p", "0"), "top_p=0"),
        (("--max-tokens", "-1"), "max_tokens=-1"),
    ],
)
def test_a_bad_setting_is_one_line_and_exits_2(octavo, tiny, args, message):
    result = octavo("run", "hi", *tiny, *args)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_a_model_that_cannot_be_had_exits_3(octavo, tmp_path):
    result = octavo("run", "hi", "--model", tmp_path / "none.gguf")
    assert result.code == 3
    assert result.err.startswith("error: ")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    assert octavo("run", "hi", "--model", broken).code == 3


def test_debug_shows_the_traceback(octavo, monkeypatch):
    assert "Traceback" in octavo("run", "hi", "--max-num-seqs", "0", "--debug").err
    monkeypatch.setenv("OCTAVO_DEBUG", "1")
    assert "Traceback" in octavo("run", "hi", "--max-num-seqs", "0").err


def test_a_warning_is_one_line(octavo, tiny):
    result = octavo("run", "hi", *tiny, "--num-kv-blocks", "8", "--max-tokens", "1")
    assert result.code == 0
    assert result.err.startswith("warning: max_model_len is 128 instead of 512")
    assert "UserWarning" not in result.err
