"""The scripts of benchmarks/: what they ask of other engines, how they read and sum up answers."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

import compare
import engines
import make_random_model
from octavo import LLM, SamplingParams
from octavo.model.files.gguf import GGUFFile
from tiny_model import MIN_VOCAB_SIZE
from workload import WORKS, Work

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

# What llama.cpp (Oct 2026) printed, shortened to the fields that matter and a few that do not.
LLAMA_BENCH = """[
  {"build_commit": "unknown", "cpu_info": "AMD EPYC", "n_threads": 2, "flash_attn": 1,
   "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ns": 1000000000,
   "samples_ns": [ 1000000000, 500000000 ], "samples_ts": [ 512.0, 1024.0 ]}
]
"""
BATCHED_BENCH = """
{"n_kv_max": 8192, "n_batch": 2048, "pp": 128, "tg": 32, "pl": 32, "n_kv": 5120, "t_pp": 5.0, \
"speed_pp": 819.2, "t_tg": 3.0, "speed_tg": 341.3, "t": 8.0, "speed": 640.0}

"""


def test_a_figure_is_counted_from_the_first_token_or_up_to_it_or_over_all():
    assert Work("w", "prefill", 1, 512, 1).tokens_per_second(0.5, 0.6) == 1024
    assert Work("w", "decode", 1, 128, 9).tokens_per_second(0.5, 2.5) == 4
    assert Work("w", "total", 32, 128, 32).tokens_per_second(0.0, 2.0) == 2560


def test_prompts_are_the_same_for_every_engine_and_others_for_every_seed():
    work = WORKS["throughput"]
    prompts = work.prompts(7, 49_152)
    assert prompts == work.prompts(7, 49_152)
    assert [len(prompt) for prompt in prompts] == [128] * 32
    assert all(1000 <= token < 49_152 for prompt in prompts for token in prompt)
    starts = {tuple(prompt[:16]) for seed in (7, 8) for prompt in work.prompts(seed, 49_152)}
    assert len(starts) == 64  # no two share a block
    assert max(map(max, work.prompts(0, 300))) < 300


def test_llama_bench_is_asked_for_the_work_that_is_counted():
    def flags(work: Work) -> dict[str, str]:
        command = engines.llama_command(work, Path("/bin"), "m.gguf", 2)[1:]
        return {key: command[i + 1] for i, key in enumerate(command[:-1]) if key[0] == "-"}

    decode, prefill = flags(WORKS["decode-4k"]), flags(WORKS["prefill"])
    assert (decode["-p"], decode["-n"], decode["-d"], decode["-fa"]) == ("0", "63", "4096", "1")
    assert (prefill["-p"], prefill["-n"], prefill["-r"]) == ("512", "0", "3")
    many = flags(WORKS["throughput"])
    assert (many["-npp"], many["-ntg"], many["-npl"], many["-c"]) == ("128", "32", "32", "8192")


def test_llama_bench_is_read_sample_by_sample():
    assert engines.parse_llama(LLAMA_BENCH, WORKS["prefill"]) == [512.0, 1024.0]


def test_llama_batched_bench_is_read_as_all_tokens_over_all_seconds():
    assert engines.parse_llama(BATCHED_BENCH, WORKS["throughput"]) == [640.0]


@pytest.mark.parametrize(
    ("output", "work"),
    [(LLAMA_BENCH, "decode"), (LLAMA_BENCH, "prefill-4k"), ("", "prefill"), ("", "throughput"),
     (BATCHED_BENCH.replace('"pl": 32', '"pl": 16'), "throughput")],
)  # fmt: skip
def test_an_answer_about_other_work_is_no_answer(output, work):
    with pytest.raises(engines.EngineFailedError, match="no result of the shape"):
        engines.parse_llama(output, WORKS[work])


def test_measurements_that_are_missing_are_no_answer():
    line = json.dumps({"first_token_s": 0.5, "total_s": 0.6, "num_new_tokens": 1})
    assert engines.parse_timings([line] * 3, WORKS["prefill"]) == [1024.0] * 3
    with pytest.raises(engines.EngineFailedError, match="2 measurements instead of 3"):
        engines.parse_timings([line] * 2, WORKS["prefill"])


def test_a_ratio_is_the_median_of_the_rounds_ratios():
    def run(number: int, engine: str, *samples: float) -> compare.Run:
        return compare.Run(number, "decode", engine, list(samples), 0.0)

    rows = compare.summarise(
        [run(0, "octavo", 100, 10, 200), run(1, "octavo", 40), run(2, "octavo", 90),
         run(0, "openvino", 50), run(1, "openvino", 10), run(2, "openvino", 30),
         run(1, "llama.cpp", 80)]
    )  # fmt: skip
    octavo, openvino, llama = rows
    assert (octavo.median, octavo.least, octavo.greatest, octavo.ratios) == (90, 40, 100, {})
    assert (openvino.median, openvino.ratios) == (30, {"octavo": 3.0})  # of 2, 4 and 3
    assert llama.ratios == {"octavo": 0.5}  # only of the round that both were in
    assert "| decode | openvino | 30.0 | 10.0 - 50.0 | 3.00 |  |" in compare.table(rows)


class Fake:
    """An engine that answers at once, or fails."""

    def __init__(self, name: str, log: list[str], *, fails: bool = False) -> None:
        self.name, self.version, self.log, self.fails = name, "1", log, fails

    def measure(self, work: Work, seed: int) -> list[float]:
        self.log.append(self.name)
        if self.fails:
            raise engines.EngineFailedError("no")
        return [1.0]


def test_rounds_alternate_and_what_fails_is_told_once():
    log: list[str] = []
    told: list[str] = []
    runners = [Fake("a", log), Fake("bad", log, fails=True), Fake("c", log)]
    runs = compare.measure(runners, [WORKS["decode"]], 3, 0, told.append)
    assert log == ["a", "bad", "c", "c", "a", "a", "c"]
    assert [run.round for run in runs] == [0, 0, 1, 1, 2, 2]
    assert [line for line in told if "FAILED" in line] == ["round 1  decode  bad: FAILED. no"]


def test_missing_links_to_libraries_are_made(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "libllama.so.0.6.0").touch()
    for _ in range(2):  # once more changes nothing
        env = engines.library_env(programs, tmp_path / "links")
    assert (tmp_path / "links/libllama.so.0").resolve() == programs / "libllama.so.0.6.0"
    assert env["LD_LIBRARY_PATH"].split(":")[:2] == [str(tmp_path / "links"), str(programs)]


def test_a_program_that_fails_is_quoted():
    code = "import sys; print('why', file=sys.stderr); sys.exit(3)"
    with pytest.raises(engines.EngineFailedError, match=r"ended with code 3: why"):
        engines._output([sys.executable, "-c", code], {}, 60)


def test_help():
    command = [sys.executable, str(BENCHMARKS / "compare.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--peer-python" in done.stdout
    assert "llama.cpp-q4_0" in done.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--engines", "octavo,ollama"], "'ollama' is unknown; known: octavo, "),
     (["--work", "prefil"], "'prefil' is unknown; known: decode, "),
     (["--engines", ","], "none named"),
     (["--rounds", "0"], "not a whole number of at least 1"),
     (["--new-tokens", "1", "--work", "decode"], "give at least 2"),
     (["--model", "/nowhere.gguf"], "neither a file here nor a known model")],
)  # fmt: skip
def test_what_cannot_be_had_is_refused(flags, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        compare.main(["--work-dir", str(tmp_path), *flags])
    assert message in capsys.readouterr().err


def test_a_list_of_names_keeps_its_order_and_drops_repeats():
    assert compare._names("abc")("c, a,c") == ["c", "a"]
    with pytest.raises(argparse.ArgumentTypeError):
        compare._names("abc")("d")


@pytest.fixture
def random_path(tiny_model_path, tmp_path) -> Path:
    path = tmp_path / "random.gguf"
    sizes = {"layers": 2, "hidden": 64, "ffn": 128, "heads": 4, "kv-heads": 2, "context": 256}
    flags = [f"--{name}={size}" for name, size in sizes.items()]
    make_random_model.main([str(path), f"--tokenizer={tiny_model_path}", *flags])
    return path


def test_a_random_model_has_the_sizes_and_weights_that_were_asked_for(random_path):
    file = GGUFFile.open(random_path)
    assert file.metadata["llama.context_length"] == 256
    assert file.metadata["general.file_type"] == compare.FILE_TYPE_Q4_0
    assert "output.weight" not in file.tensors
    down = file.tensors["blk.1.ffn_down.weight"].dequantize()
    assert down.shape == (64, 128)
    assert down.std() * 128**0.5 == pytest.approx(1.04, rel=0.03)  # scales vary by 1/12
    assert abs(down.mean()) * 128**0.5 < 0.1  # 0.05 is the deviation of a mean of 256 signs


def test_octavo_generates_from_a_random_model(random_path):
    llm = LLM(str(random_path), backend="reference", num_kv_blocks=16)
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    prompt = {"prompt_token_ids": list(range(100, 120))}
    (output,) = llm.generate([prompt], params)
    assert len(output.outputs[0].token_ids) == 4
    assert llm.model.spec.vocab_size == MIN_VOCAB_SIZE
    assert llm.faults == ()


@pytest.mark.parametrize("sizes", [{"hidden": 80}, {"ffn": 100}, {"heads": 5}, {"kv_heads": 3}])
def test_sizes_that_do_not_fit_are_refused(sizes, tmp_path, tiny_model_path):
    shape = make_random_model.Shape(**{"hidden": 64, "ffn": 128, "heads": 4, "kv_heads": 2} | sizes)
    with pytest.raises(ValueError, match=r"multiple of 32|must divide"):
        make_random_model.write_random_model(tmp_path / "m.gguf", tiny_model_path, shape)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("kernels")
def test_octavo_is_measured_in_a_process_of_its_own(random_path, tmp_path):
    flags = f"--model {random_path} --engines octavo,octavo-q4_0 --work decode --new-tokens 3"
    results = tmp_path / "r.json"
    command = [sys.executable, str(BENCHMARKS / "compare.py"), *flags.split(), "--rounds", "1",
               "--work-dir", str(tmp_path), "--json", str(results)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "skipped octavo-q4_0: the model's file is Q4_0 itself" in done.stderr
    (run,) = json.loads(results.read_text())["runs"]
    assert (run["work"], run["engine"], len(run["samples"])) == ("decode", "octavo", 3)
