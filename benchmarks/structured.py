"""What a grammar costs: throughput at many streams, the masks by themselves, and the first token.

    python benchmarks/structured.py --model smollm2 --rounds 7

With and without alternate, so that a busy machine troubles both; medians, and of ratios the median.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import numpy as np

from octavo import LLM, SamplingParams

SCHEMA = {
    "type": "array",
    "minItems": 50,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "kind": {"enum": ["red", "green", "blue"]},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["name", "age", "kind", "tags"],
        "additionalProperties": False,
    },
}


def seconds(llm: LLM, params: SamplingParams, count: int) -> tuple[float, int]:
    """Return how long so many requests take, and the tokens that they gave."""
    prompts = [
        {"prompt_token_ids": np.random.default_rng(i).integers(100, 9000, 32)} for i in range(count)
    ]
    begin = time.perf_counter()
    outputs = llm.generate(prompts, params)
    taken = time.perf_counter() - begin
    return taken, sum(len(output.outputs[0].token_ids) for output in outputs)


def throughput(llm: LLM, streams: int, rounds: int) -> None:
    """Compare tokens a second with and without a grammar."""
    plain = SamplingParams(max_tokens=64, temperature=0.8, seed=1, ignore_eos=True)
    shaped = replace(plain, structured_outputs={"json": SCHEMA})
    rates: list[tuple[float, float]] = []
    for _ in range(rounds + 1):
        pair = [seconds(llm, params, streams) for params in (plain, shaped)]
        rates.append((pair[0][1] / pair[0][0], pair[1][1] / pair[1][0]))
    del rates[0]  # it warms both up
    without, with_one = (statistics.median(side) for side in zip(*rates, strict=True))
    ratio = statistics.median(b / a for a, b in rates)
    print(f"{streams} streams: {without:.0f} tok/s without, {with_one:.0f} with, ratio {ratio:.3f}")


def masks(llm: LLM, streams: int) -> None:
    """Time the masks of a step and the taking in of its tokens, a row, along real answers."""
    params = SamplingParams(
        max_tokens=64, temperature=0.8, seed=1, structured_outputs={"json": SCHEMA}
    )
    answers = [output.outputs[0].token_ids for output in llm.generate(["JSON:"] * streams, params)]
    from octavo.grammar.matcher import MaskFiller

    grammar = llm.grammar_for(params)
    assert grammar is not None
    matchers = [grammar.begin() for _ in range(streams)]
    filler = MaskFiller(matchers[0].num_words)
    making, taking = [], []
    for i in range(64):
        begin = time.perf_counter()
        for matcher, ids in zip(matchers, answers, strict=True):
            matcher.accept(ids[i])
        middle = time.perf_counter()
        filler.start(matchers)
        filler.join()
        taking.append((middle - begin) / streams * 1e6)
        making.append((time.perf_counter() - middle) / streams * 1e6)
    filler.close()
    print(
        f"a row, us: masks mean {statistics.mean(making):.1f}, "
        f"median {statistics.median(making):.1f}; "
        f"tokens taken in mean {statistics.mean(taking):.1f}"
    )


def first_token(llm: LLM, rounds: int) -> None:
    """Compare the time to one token, the schema known."""
    plain = SamplingParams(max_tokens=1, temperature=0)
    shaped = replace(plain, structured_outputs={"json": SCHEMA})
    pairs = [
        [seconds(llm, params, 1)[0] * 1e3 for params in (plain, shaped)] for _ in range(rounds + 2)
    ][2:]
    more = statistics.median(b - a for a, b in pairs)
    without, with_one = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(f"first token, ms: {without:.2f} without, {with_one:.2f} with, {more:+.2f}")


def main() -> None:
    """Measure all three."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    llm = LLM(args.model, max_num_seqs=args.streams, enable_prefix_caching=False)
    throughput(llm, args.streams, args.rounds)
    masks(llm, args.streams)
    first_token(llm, 8 * args.rounds)


if __name__ == "__main__":
    main()
