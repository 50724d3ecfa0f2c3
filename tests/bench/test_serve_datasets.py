"""What is asked: lengths, shared prefixes, files; and that a seed fixes it."""

import gzip
import json
from collections import Counter
from itertools import pairwise

import pytest

from octavo.bench.serve.datasets import NUM_SPECIALS, BenchRequest, load_dataset
from octavo.bench.serve.settings import DatasetSettings
from octavo.errors import ConfigError, TraceError


class Words:
    """A tokenizer whose tokens are words: as much of `Tokenizer` as data sets use."""

    vocab_size = 50
    special_ids = frozenset({0, 49})

    def encode(self, text):
        return [hash(word) % 47 + 1 for word in text.split()]

    def decode(self, ids):
        return " ".join(f"w{i}" for i in ids)


def load(name, *, seed=0, chat=False, tokenizer=None, **settings):
    settings = DatasetSettings(dataset_name=name, **settings)
    return load_dataset(settings, seed=seed, is_chat=chat, tokenizer=tokenizer)


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))


def test_random_prompts_have_their_lengths_and_one_prefix():
    found = load("random", num_prompts=200, random_input_len=10, random_output_len=4,
                 random_range_ratio=0.5, random_prefix_len=6)  # fmt: skip
    lengths = Counter(each.prompt_len - 6 for each in found)
    assert set(lengths) == set(range(5, 16))
    assert {each.output_len for each in found} == set(range(2, 7))
    for each in found:
        assert len(each.prompt) == each.prompt_len
        assert each.prompt[:6] == found[0].prompt[:6]
        assert all(NUM_SPECIALS <= i < 49152 for i in each.prompt)
    assert all(a.prompt[6:] != b.prompt[6:] for a, b in pairwise(found))


def test_lengths_are_exact_without_a_ratio_and_short_flags_set_them():
    found = load("random", num_prompts=3, input_len=9, output_len=2)
    assert [(each.prompt_len, each.output_len) for each in found] == [(9, 2)] * 3


@pytest.mark.parametrize("name", ["random", "prefix_repetition"])
def test_a_seed_fixes_the_prompts(name):
    assert load(name, seed=1) == load(name, seed=1)
    assert load(name, seed=1) != load(name, seed=2)


def test_prefixes_are_repeated_equally_and_shuffled():
    found = load(
        "prefix_repetition", num_prompts=25, prefix_repetition_num_prefixes=4,
        prefix_repetition_prefix_len=8, prefix_repetition_suffix_len=3,
        prefix_repetition_output_len=5,
    )  # fmt: skip
    counts = Counter(tuple(each.prompt[:8]) for each in found)
    assert sorted(counts.values()) == [6, 6, 6, 7]
    assert {(each.prompt_len, each.output_len) for each in found} == {(11, 5)}
    assert len({tuple(each.prompt) for each in found}) == 25
    order = [list(counts).index(tuple(each.prompt[:8])) for each in found]
    assert order != [i % 4 for i in range(25)]


def test_a_tokenizer_says_the_vocabulary_and_makes_text_for_a_chat():
    ids = {i for each in load("random", tokenizer=Words(), num_prompts=9) for i in each.prompt}
    assert ids == set(range(1, 49))
    [first] = load("random", tokenizer=Words(), num_prompts=1, input_len=3, chat=True)
    [message] = first.prompt
    assert message["role"] == "user"
    assert len(message["content"].split()) == first.prompt_len == 3


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def sharegpt(path, *sizes):
    turn = [
        {
            "id": str(i),
            "conversations": [
                {"from": "human", "value": f"q{i} " * prompt},
                {"from": "gpt", "value": "a " * answer},
            ],
        }
        for i, (prompt, answer) in enumerate(sizes)
    ]
    path.write_text(json.dumps([*turn, {"id": "x", "conversations": turn[0]["conversations"][:1]}]))
    return str(path)


def test_sharegpt_asks_first_turns_whose_lengths_fit(tmp_path):
    path = sharegpt(tmp_path / "s.json", (5, 6), (3, 9), (9, 3), (1025, 9), (1000, 1049), (7, 8))
    found = load("sharegpt", dataset_path=path, tokenizer=Words())
    assert {(each.prompt_len, each.output_len) for each in found} == {(5, 6), (7, 8)}
    assert {each.prompt for each in found} == {"q0 " * 5, "q5 " * 7}
    wide = load("sharegpt", dataset_path=path, tokenizer=Words(), max_total_len=3000)
    assert len(wide) == 4
    short = load("sharegpt", dataset_path=path, tokenizer=Words(), sharegpt_output_len=2, chat=True)
    assert {each.output_len for each in short} == {2}
    assert {each.prompt_len for each in short} == {5, 7, 9, 1000}
    assert all(each.prompt[0]["role"] == "user" for each in short)


def test_sharegpts_order_is_the_seeds(tmp_path):
    path = sharegpt(tmp_path / "s.json", *((5 + i, 5) for i in range(20)))

    def order(seed):
        found = load("sharegpt", dataset_path=path, tokenizer=Words(), seed=seed, num_prompts=8)
        return [each.prompt_len for each in found]

    assert order(1) == order(1) != order(2)


def test_custom_lines_say_prompt_and_length(tmp_path):
    path = write(
        tmp_path / "c.jsonl", [{"prompt": "a b", "output_tokens": 3}, {"prompt": [5, 6, 7]}]
    )
    assert load("custom", dataset_path=path) == [
        BenchRequest("a b", 0, 3),
        BenchRequest([5, 6, 7], 3, 256),
    ]
    counted = load("custom", dataset_path=path, tokenizer=Words(), custom_output_len=9)
    assert [(each.prompt_len, each.output_len) for each in counted] == [(2, 9), (3, 9)]
    assert len(load("custom", dataset_path=path, num_prompts=1)) == 1
    chat = write(tmp_path / "m.jsonl", [{"messages": [{"role": "user", "content": "hi"}]}])
    [only] = load("custom", dataset_path=chat, chat=True)
    assert only.prompt == [{"role": "user", "content": "hi"}]


def test_a_trace_keeps_lengths_times_and_who_shares(tmp_path):
    path = write(
        tmp_path / "m.jsonl",
        [
            {"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
            {"timestamp": 3000, "input_length": 1200, "output_length": 0, "hash_ids": [0, 1, 3]},
            {"timestamp": 4000, "input_length": 512, "output_length": 7, "hash_ids": [9]},
        ],
    )
    found = load("timed_trace", dataset_path=path, time_scale=0.5)
    assert [each.arrival for each in found] == [0.0, 1.0, 1.5]
    assert [each.prompt_len for each in found] == [1100, 1200, 512]
    assert [len(each.prompt) for each in found] == [1100, 1200, 512]
    assert [each.output_len for each in found] == [5, 1, 7]
    assert common(found[0].prompt, found[1].prompt) == 1024
    assert common(found[0].prompt, found[2].prompt) == 0
    assert found == load("timed_trace", dataset_path=path, time_scale=0.5)
    other = load("timed_trace", dataset_path=path, seed=1)
    assert common(found[0].prompt, other[0].prompt) < 8
    fitting = load("timed_trace", dataset_path=path, max_total_len=1201)
    assert [(each.prompt_len, each.arrival) for each in fitting] == [
        (1100, 0.0), (1200, 2.0), (512, 3.0),
    ]  # fmt: skip
    assert len(load("timed_trace", dataset_path=path, max_total_len=1105)) == 2


def test_a_trace_of_lengths_shares_nothing(tmp_path):
    rows = "arrival_ns,input_tokens,output_tokens\n1000000000,70,5\n1500000000,70,6\n"
    (tmp_path / "l.csv.gz").write_bytes(gzip.compress(rows.encode()))
    found = load("timed_trace", dataset_path=str(tmp_path / "l.csv.gz"))
    assert [(each.arrival, len(each.prompt), each.output_len) for each in found] == [
        (0.0, 70, 5), (0.5, 70, 6),
    ]  # fmt: skip
    assert common(found[0].prompt, found[1].prompt) < 8


@pytest.mark.parametrize(
    ("settings", "error", "reason"),
    [
        ({"name": "sharegpt", "content": "[]"}, ConfigError, "--tokenizer smollm2"),
        ({"name": "sharegpt", "content": "{", "tokenizer": Words()}, TraceError, "not ShareGPT's"),
        ({"name": "sharegpt", "content": "[1]", "tokenizer": Words()}, TraceError, "not ShareGPT"),
        ({"name": "sharegpt", "content": "[]", "tokenizer": Words()}, ConfigError, "no request"),
        ({"name": "custom", "content": '{"prompt": ""}'}, TraceError, "line 1: there is no prompt"),
        ({"name": "custom", "content": '{"prompt": [1]}', "chat": True}, TraceError, "token ids"),
        ({"name": "custom", "content": '{"messages": []}'}, TraceError, "--backend openai-chat"),
        ({"name": "timed_trace", "content": "1\n2\n"}, TraceError, "single keys"),
        ({"name": "random", "chat": True}, ConfigError, "--tokenizer smollm2"),
        ({"name": "random", "vocab_size": 17}, ConfigError, "must be above 17"),
        ({"name": "prefix_repetition", "num_prompts": 3}, ConfigError, "than the 10 prefixes"),
    ],
)
def test_what_cannot_be_asked_is_refused(tmp_path, settings, error, reason):
    content = settings.pop("content", None)
    if content is not None:
        (tmp_path / "file").write_text(content)
        settings["dataset_path"] = str(tmp_path / "file")
    with pytest.raises(error, match=reason):
        load(**settings)
