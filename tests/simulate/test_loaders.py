"""Trace files: what each format means, how it is recognised, and what is said of a bad line."""

from __future__ import annotations

import gzip
import json

import pytest

from octavo.cache.manager import KVCacheManager
from octavo.cache.policies import find_policy
from octavo.engine.request import Request
from octavo.errors import TraceError
from octavo.sampling.params import SamplingParams
from octavo.simulate.loaders import find_format, load_trace
from octavo.simulate.trace import KeyTrace, LengthTrace, PromptTrace
from simulate.trace_files import (
    CONVERSATION_400,
    load_shared,
    only_if_long_tests_are_wanted,
    shared,
)


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        data = text if isinstance(text, bytes) else text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


def mooncake(ids, num_tokens=None, **fields):
    num_tokens = 512 * len(ids) if num_tokens is None else num_tokens
    return json.dumps(
        {
            "timestamp": 1500,
            "input_length": num_tokens,
            "output_length": 7,
            "hash_ids": ids,
            **fields,
        }
    )


def session(*requests, block_size=64):
    return json.dumps({"block_size": block_size, "requests": list(requests)})


def call(time, *runs, **fields):
    count = sum(count for _, count in runs)
    return {"t": time, "in": 64 * count, "out": 5, "h": [list(run) for run in runs], **fields}


class TestMooncake:
    def test_blocks_lengths_and_seconds(self, write):
        trace = load_trace(write("a.jsonl", mooncake([0, 1], 700) + "\n\n" + mooncake([0, 2])))
        assert isinstance(trace, PromptTrace)
        assert (trace.name, trace.block_size) == ("a", 512)
        first, second = trace.requests
        assert (first.blocks, first.num_tokens, first.num_output_tokens) == ([0, 1], 700, 7)
        assert first.arrival == 1.5
        assert second.blocks == [0, 2]

    def test_the_real_one(self):
        trace = load_trace(CONVERSATION_400)
        assert len(trace.requests) == 400
        assert trace.requests[0].blocks == list(range(14))
        assert trace.requests[0].num_tokens == 6758

    def test_the_whole_real_one(self):
        trace = load_shared("kv/mooncake_conversation.jsonl.gz")
        blocks = [block for request in trace.requests for block in request.blocks]
        assert (len(trace.requests), len(blocks), len(set(blocks))) == (12031, 288500, 182790)

    def test_limit(self):
        assert len(load_trace(CONVERSATION_400, limit=3).requests) == 3

    def test_another_block_size(self, write):
        path = write("a.jsonl", mooncake([0, 1], 32))
        assert load_trace(path, block_size=16).block_size == 16
        with pytest.raises(TraceError, match="line 1: 32 tokens are not 2 blocks of 512"):
            load_trace(path)

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ("{", "this is not JSON"),
            ("[1]", "this is not a JSON object"),
            ('{"hash_ids": [1]}', "there is no field 'input_length'"),
            (mooncake([1], timestamp="soon"), "'timestamp' is not of type float"),
            (mooncake([1], input_length=-1), "'input_length' is -1, less than nothing"),
            (mooncake([1], hash_ids=3), "'hash_ids' is not of type list"),
            (mooncake(["x"]), "a hash id is 'x', not a whole number"),
            (mooncake([1, 0]), "id 0 follows 1 here and None before"),
            (mooncake([5, 5]), "id 5 follows 5 here and None before"),
        ],
    )
    def test_a_bad_line_is_named(self, write, line, reason):
        path = write("a.jsonl.gz", mooncake([0, 2]) + "\n" + line)
        with pytest.raises(TraceError) as caught:
            load_trace(path)
        assert f"{path}, line 2: {reason}" in str(caught.value)


class TestSessions:
    def test_ids_are_the_sessions_own_and_runs_are_expanded(self, write):
        lines = [session(call(0.0, (1, 3)), call(9.0, (1, 2), (7, 1))), session(call(0.0, (1, 1)))]
        trace = load_trace(write("a.jsonl", "\n".join(lines)), users=2)
        assert trace.block_size == 64
        lengths = [len(request.blocks) for request in trace.requests]
        assert sorted(lengths) == [1, 3, 3]
        three, last = (r for r in trace.requests if len(r.blocks) == 3)
        assert three.blocks[:2] == last.blocks[:2]
        assert len({block for request in trace.requests for block in request.blocks}) == 5
        assert next(iter(trace.requests)) in trace.requests

    def test_one_user_runs_one_session_after_another(self, write):
        lines = [session(call(0.0, (0, 1)), call(10.0, (0, 1)))] * 3
        trace = load_trace(write("a.jsonl", "\n".join(lines)), users=1)
        assert [request.arrival for request in trace.requests] == [
            0.0,
            10.0,
            10.0,
            20.0,
            20.0,
            30.0,
        ]
        assert [request.blocks for request in trace.requests] == sorted(
            ([b] for b in (0, 1, 2) for _ in range(2)),
            key=lambda blocks: [r.blocks for r in trace.requests].index(blocks),
        )

    def test_a_sub_agent_counts_time_from_its_own_start(self, write):
        nested = {"t": 5.0, "requests": [call(1.0, (0, 2))]}
        trace = load_trace(write("a.jsonl", session(call(0.0, (9, 1)), nested, call(7.0, (9, 1)))))
        assert [request.arrival for request in trace.requests] == [0.0, 6.0, 7.0]

    def test_the_mix_is_a_function_of_the_seed(self, write):
        path = write("a.jsonl", "\n".join(session(call(0.0, (0, n))) for n in range(1, 20)))

        def lengths(seed):
            return [len(request.blocks) for request in load_trace(path, seed=seed).requests]

        assert lengths(1) == lengths(1) != lengths(2)

    def test_the_real_ones(self):
        only_if_long_tests_are_wanted()
        trace = load_trace(shared("kv/agent_sessions_rle.jsonl.zst"))
        assert len(trace.requests) == 49334
        times = [request.arrival for request in trace.requests._requests]
        assert times == sorted(times)

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            (session(call(0.0, (1, 0))), "[1, 0] is not [first id, count]"),
            (session(7), "a request is not a JSON object"),
            (session({"t": 0.0, "in": 1, "out": 1}), "there is no field 'h'"),
            (session(call(0.0, (1, 1), (5, 1)), call(1.0, (5, 1))), "id 5 follows None here and 1"),
            (session(block_size=32), "block_size is 32 here and 64 before"),
        ],
    )
    def test_a_bad_line_is_named(self, write, line, reason):
        path = write("a.jsonl", session(call(0.0, (1, 1))) + "\n" + line)
        with pytest.raises(TraceError) as caught:
            load_trace(path)
        assert f"{path}, line 2: {reason}" in str(caught.value)


class TestText:
    def load(self, path, **more):
        return load_trace(path, tokenize=lambda text: list(text.encode()), **more)

    def test_full_blocks_get_the_engines_keys(self, write):
        line = json.dumps({"timestamp": 2_000_000, "input": "a" * 40, "output": "bc"})
        trace = self.load(write("a.jsonl", line))
        (request,) = trace.requests
        assert (trace.block_size, request.num_tokens, request.num_output_tokens) == (16, 40, 2)
        assert request.arrival == 2.0
        assert len(request.blocks) == 2
        cache = KVCacheManager(4, 16, find_policy("lru"), model=b"trace")
        job = Request("", [97] * 40, SamplingParams())
        cache.match_prefix(job)
        assert job.block_keys == request.blocks

    def test_equal_prefixes_are_equal_blocks(self, write):
        lines = [json.dumps({"timestamp": 0, "input": "x" * 32 + end}) for end in ("", "a" * 16)]
        first, second = self.load(write("a.jsonl", "\n".join(lines))).requests
        assert second.blocks[:2] == first.blocks
        assert len(second.blocks) == 3

    def test_it_needs_a_tokenizer(self, write):
        with pytest.raises(TraceError, match="--tokenizer"):
            load_trace(write("a.jsonl", '{"input": "x", "timestamp": 0}'))

    def test_the_real_ones(self):
        trace = self.load(shared("kv/taubench.jsonl.zst"), limit=50)
        assert len(trace.requests) == 50


class TestKeys:
    def test_lis_expands_runs(self, write):
        trace = load_trace(write("a.lis", "5 3 0 0\n9 1 0 1\n"))
        assert isinstance(trace, KeyTrace)
        assert trace.keys == [5, 6, 7, 9]

    def test_lirs_skips_marks(self, write):
        assert load_trace(write("a.trace", "5\n*\n6\n5\n*\n")).keys == [5, 6, 5]

    @pytest.mark.parametrize("name", ["a.lis", "a.trace"])
    def test_limit(self, write, name):
        text = "5 3 0 0\n9 9 0 1\n" if name == "a.lis" else "5\n6\n7\n8\n9\n"
        assert load_trace(write(name, text), limit=4).keys == (
            [5, 6, 7, 9] if name == "a.lis" else [5, 6, 7, 8]
        )

    @pytest.mark.parametrize(
        ("name", "line", "reason"),
        [
            ("a.lis", "5", "2 numbers were expected, not 1"),
            ("a.lis", "5 0 0 0", "the count is 0; it must be from 1 to 16777216"),
            ("a.lis", "five 3", "not all of 'five 3' are whole numbers"),
            ("a.trace", "x", "not all of 'x' are whole numbers"),
            ("a.trace", "1 2", "one number was expected, not 2"),
        ],
    )
    def test_a_bad_line_is_named(self, write, name, line, reason):
        path = write(name, ("1 1 0 0\n" if name == "a.lis" else "1\n") + line)
        with pytest.raises(TraceError) as caught:
            load_trace(path)
        assert str(caught.value) == f"{path}, line 2: {reason}"


class TestLengths:
    @pytest.mark.parametrize(
        "text",
        [
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:17:03.9799600,10,2\n2023-11-16 18:17:05.4799600,30,4\n",
            "arrival_ns,input_tokens,output_tokens\n1000000000,10,2\n2500000000,30,4\n",
            "Timestamp,Model,Request tokens,Response tokens,Log Type\n5,x,10,2,y\n6.5,x,30,4,y\n",
        ],
    )
    def test_the_public_headers(self, write, text):
        trace = load_trace(write("a.csv", text))
        assert isinstance(trace, LengthTrace)
        first, second = trace.requests
        assert (first.num_tokens, first.num_output_tokens, first.arrival) == (10, 2, 0.0)
        assert (second.num_tokens, second.num_output_tokens) == (30, 4)
        assert second.arrival == pytest.approx(1.5)

    def test_the_real_ones(self):
        assert len(load_shared("kv/azure_code.csv.gz").requests) == 8819
        assert len(load_shared("kv/sharegpt_lengths.csv").requests) == 300

    def test_bad_lines_are_named(self, write):
        with pytest.raises(TraceError, match=r"line 1: no known columns; known are TIMESTAMP"):
            load_trace(write("a.csv", "a,b,c\n"))
        head = "arrival_ns,input_tokens,output_tokens\n"
        with pytest.raises(TraceError, match=r"line 2: this is not arrival_ns, input_tokens"):
            load_trace(write("a.csv", head + "1,x,3\n"))
        with pytest.raises(TraceError, match=r"line 3: this is not"):
            load_trace(write("a.csv", head + "1,2,3\n4\n"))


class TestFiles:
    @pytest.mark.parametrize(
        ("name", "text", "format_name"),
        [
            ("a.lis.gz", "1 1 0 0", "lis"),
            ("a.trc", "1", "lirs"),
            ("a.csv", "x", "lengths"),
            ("a.jsonl", mooncake([0]), "mooncake"),
            ("a.jsonl.gz", session(call(0.0, (0, 1))), "sessions"),
            ("a.txt", '{"input": "x"}', "text"),
            ("a.txt", "1 1 0 0", "lis"),
            ("a.txt", "17", "lirs"),
            ("a.txt", "a,b", "lengths"),
        ],
    )
    def test_formats_are_recognised(self, write, name, text, format_name):
        assert find_format(write(name, text)) == format_name

    def test_what_is_not_recognised_is_refused_with_a_remedy(self, write):
        with pytest.raises(TraceError, match=r"say --format mooncake\|sessions"):
            find_format(write("a.txt", "hello world"))
        with pytest.raises(TraceError, match="is empty"):
            find_format(write("a.jsonl", ""))
        with pytest.raises(TraceError, match="format is 'x'; known are mooncake"):
            load_trace(write("a.txt", "1"), format_name="x")

    def test_a_missing_file(self, tmp_path):
        with pytest.raises(TraceError, match="cannot be read: No such file"):
            load_trace(tmp_path / "none.lis")

    def test_damaged_files(self, write, tmp_path):
        cut = tmp_path / "cut.lis.gz"
        cut.write_bytes(gzip.compress(b"1 1 0 0\n" * 9999)[:-20])
        with pytest.raises(TraceError, match="the file is damaged"):
            load_trace(cut)
        not_text = tmp_path / "a.lis"
        not_text.write_bytes(b"\xff\xfe1")
        with pytest.raises(TraceError, match="this is not UTF-8"):
            load_trace(not_text)

    def test_zstd(self, tmp_path):
        zstandard = pytest.importorskip("zstandard", reason="packed traces: pip install zstandard")
        packed = zstandard.ZstdCompressor().compress(b"".join(b"%d\n" % n for n in range(9999)))
        path = tmp_path / "a.trace.zst"
        path.write_bytes(packed)
        assert load_trace(path).keys == list(range(9999))
        path.write_bytes(packed[:-50])
        with pytest.raises(TraceError, match="the file is cut short"):
            load_trace(path)
        path.write_bytes(b"not zstd")
        with pytest.raises(TraceError, match="the file is damaged"):
            load_trace(path)


@pytest.mark.parametrize("name", ["a.lis", "a.trace"])
def test_a_trace_without_a_key_is_refused(tmp_path, name):
    (tmp_path / name).write_text("")
    with pytest.raises(TraceError, match="is empty"):
        load_trace(tmp_path / name)


def test_a_run_without_bound_is_refused_before_it_is_expanded(tmp_path):
    (tmp_path / "a.lis").write_text("5 99999999999 0 0\n")
    with pytest.raises(TraceError, match="line 1: the count is 99999999999"):
        load_trace(tmp_path / "a.lis")
