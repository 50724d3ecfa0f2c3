"""One engine in a process of its own: loads a model, does one work item, prints JSON lines.

Run by compare.py with the engine's own Python, as `measure.py JOB`, where JOB is JSON with engine,
model, threads, vocab_size, seed and work. The first line names the version, each further one the
seconds of a measurement; everything that an engine prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from workload import Work


class Timing(NamedTuple):
    """A measurement. Where many requests run at once, only the total means something."""

    first_token_s: float
    total_s: float
    num_new_tokens: int


class Engine(Protocol):
    """A model, loaded; `run` completes all prompts greedily and ignores the end token."""

    def run(self, prompts: list[list[int]], output_len: int) -> Timing:
        """Complete the prompts at once; a single one is followed token by token."""


class Octavo:
    """Octavo through its offline front, in its default settings."""

    package = "octavo"

    def __init__(self, model: str, threads: int, work: Work) -> None:
        from octavo import LLM

        self.llm = LLM(model, num_threads=threads, max_num_seqs=max(64, work.num_prompts))

    def run(self, prompts: list[list[int]], output_len: int) -> Timing:
        """See `Engine`. Raises if a prefix was cached: the prompts are meant to differ."""
        from octavo import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        start = time.perf_counter()
        first = 0.0
        if len(requests) == 1:
            for _, output in self.llm.stream(requests[0], params):
                if not first and output.outputs[0].token_ids:
                    first = time.perf_counter() - start
            outputs = [output]
        else:
            outputs = self.llm.generate(requests, params)
        total = time.perf_counter() - start
        if any(output.num_cached_tokens for output in outputs):
            raise RuntimeError("part of a prompt was cached, so less was computed than is counted")
        return Timing(first, total, sum(len(output.outputs[0].token_ids) for output in outputs))


class OpenVINO:
    """OpenVINO GenAI, which reads GGUF files: LLMPipeline for one prompt, else batching."""

    package = "openvino-genai"
    max_batched_tokens = 2048  # its fastest of 256 (its default), 512 and 2048 on 32 x (128 + 32)

    def __init__(self, model: str, threads: int, work: Work) -> None:
        import openvino_genai as genai

        properties = {"INFERENCE_NUM_THREADS": threads}
        self.pipeline: Any
        if work.num_prompts == 1:
            self.pipeline = genai.LLMPipeline(model, "CPU", **properties)
        else:
            scheduler = genai.SchedulerConfig()
            scheduler.max_num_batched_tokens = self.max_batched_tokens
            scheduler.max_num_seqs = 256
            scheduler.cache_size = 1  # GB
            scheduler.enable_prefix_caching = False
            self.pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)

    def run(self, prompts: list[list[int]], output_len: int) -> Timing:
        """See `Engine`. The first token's time is the one that the pipeline reports."""
        import numpy as np
        import openvino as ov
        import openvino_genai as genai

        config = genai.GenerationConfig()
        config.max_new_tokens = output_len
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        inputs = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        start = time.perf_counter()
        if len(inputs) == 1:
            result = self.pipeline.generate(inputs[0], config)
            total = time.perf_counter() - start
            first = result.perf_metrics.get_ttft().mean / 1000
            return Timing(first, total, len(result.tokens[0]))
        results = self.pipeline.generate(inputs, [config] * len(inputs))
        total = time.perf_counter() - start
        return Timing(0.0, total, sum(len(result.m_generation_ids[0]) for result in results))


class VLLM:
    """vLLM on a CPU in bfloat16, stepped by hand so that the first token's time is known."""

    package = "vllm"

    def __init__(self, model: str, threads: int, work: Work) -> None:
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{threads - 1}")
        from vllm import LLM

        self.llm: Any = LLM(
            model,
            dtype="bfloat16",
            enable_prefix_caching=False,
            max_model_len=work.input_len + work.output_len,
            max_num_seqs=max(work.num_prompts, 2),
        )

    def run(self, prompts: list[list[int]], output_len: int) -> Timing:
        """See `Engine`."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
        engine = self.llm.llm_engine
        start = time.perf_counter()
        for index, prompt in enumerate(prompts):
            engine.add_request(f"{start}-{index}", {"prompt_token_ids": prompt}, params)
        first, num_tokens = 0.0, 0
        while engine.has_unfinished_requests():
            for output in engine.step():
                first = first or time.perf_counter() - start
                num_tokens += len(output.outputs[0].token_ids) if output.finished else 0
        return Timing(first, time.perf_counter() - start, num_tokens)


class _Clock:
    """A streamer for transformers: when the prompt and each token after it were handed on."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _: object) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is held back."""


class Transformers:
    """transformers.generate on torch, bfloat16: the folder's weights, or the GGUF's as floats."""

    package = "transformers"

    def __init__(self, model: str, threads: int, _: Work) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        path = Path(model)
        source = {"gguf_file": path.name} if path.is_file() else {}
        folder = path.parent if path.is_file() else model
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, **source
        ).eval()

    def run(self, prompts: list[list[int]], output_len: int) -> Timing:
        """See `Engine`. All prompts are one batch, for they are equally long."""
        import torch

        ids = torch.tensor(prompts)
        clock = _Clock() if len(prompts) == 1 else None
        start = time.perf_counter()
        with torch.inference_mode():
            output = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=output_len,
                max_new_tokens=output_len,
                streamer=clock,
            )
        total = time.perf_counter() - start
        first = clock.times[1] - start if clock else 0.0  # times[0]: the prompt, handed on at once
        return Timing(first, total, output[:, ids.shape[1] :].numel())


ENGINES: dict[str, Any] = {
    "octavo": Octavo,
    "openvino": OpenVINO,
    "vllm": VLLM,
    "transformers": Transformers,
}


def main() -> None:
    """Do the job that the first argument describes."""
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what an engine prints, from C++ too, is not for compare.py to parse
    job = json.loads(sys.argv[1])
    work, kind = Work(**job["work"]), ENGINES[job["engine"]]
    print(json.dumps({"version": version(kind.package)}), file=lines)
    engine: Engine = kind(job["model"], job["threads"], work)
    for repeat in range(work.repeats + 1):
        prompts = work.prompts(job["seed"] + repeat, job["vocab_size"])
        timing = engine.run(prompts, work.output_len)
        wanted = work.num_prompts * work.output_len
        if timing.num_new_tokens != wanted:
            raise RuntimeError(f"{timing.num_new_tokens} new tokens instead of {wanted}")
        if repeat > 0:  # the first one warms up
            print(json.dumps(timing._asdict()), file=lines)
    lines.close()
    # Some engines crash or hang while their threads are torn down; what was measured is out.
    os._exit(0)


if __name__ == "__main__":
    main()
