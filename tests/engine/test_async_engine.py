"""AsyncEngine: whatever comes and goes when, a request's deltas are the answer it has alone."""

import asyncio
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo import LLM, SamplingParams
from octavo.engine import turns
from octavo.engine.async_engine import AsyncEngine
from octavo.errors import DrainingError, EngineFaultError, InvalidRequestError, QueueFullError

SETTINGS = {"num_kv_blocks": 12, "num_threads": 1, "max_num_seqs": 4, "max_model_len": 64}
TIMES = ("arrived", "queued", "scheduled", "first_token", "last_token", "ended")


@pytest.fixture(scope="module")
def llm(kernels, tiny_model_path):
    return LLM(tiny_model_path, **SETTINGS)


@pytest.fixture(scope="module")
def alone(kernels, tiny_model_path):
    """What a request's answer is when nobody else is there; told from memory the second time."""
    llm, known = LLM(tiny_model_path, **SETTINGS), {}

    def answer(prompt, params):
        if (prompt, params) not in known:
            (known[prompt, params],) = llm.generate([prompt], params)
        return known[prompt, params]

    return answer


class Seen:
    """An observer that keeps all it is told."""

    def __init__(self):
        self.steps, self.firsts, self.gaps, self.finished = [], [], [], []

    def on_step(self, step):
        self.steps.append(step)

    def on_first_token(self, stats, seconds):
        self.firsts.append((stats.request_id, seconds))

    def on_token_gap(self, seconds, count):
        self.gaps.append((seconds, count))

    def on_finished(self, stats):
        self.finished.append(stats)


def with_engine(llm, work, **options):
    """Run ``work(engine)`` on a loop of its own; all blocks are free and nobody is left then."""

    async def main():
        async with AsyncEngine(llm, **options) as engine:
            result = await asyncio.wait_for(work(engine), 60)
            await engine.drain(20)
            assert engine.num_open == 0
            return result

    result = asyncio.run(main())
    core = llm.core
    assert core.cache.num_available_blocks == core.cache.pool.num_blocks
    core.cache.check_invariants([])
    assert not core.has_requests
    assert not core._draw_rows
    assert not llm._processor._outputs
    assert not llm._processor._choices
    return result


async def gather(stream):
    return [delta async for deltas in stream for delta in deltas]


def joined(deltas, index):
    """Return one choice's text, ids, logprobs and finish_reasons."""
    own = [delta for delta in deltas if delta.index == index]
    return (
        "".join(delta.text for delta in own),
        [token_id for delta in own for token_id in delta.token_ids],
        [entry for delta in own for entry in delta.logprobs or ()],
        [delta.finish_reason for delta in own if delta.finish_reason is not None],
    )


REQUESTS = st.tuples(
    st.sampled_from(["hello", "hello the", "in " * 14, "the " * 9 + "end"]),
    st.builds(
        SamplingParams,
        n=st.sampled_from([1, 1, 2, 3]),
        seed=st.integers(0, 2),
        max_tokens=st.sampled_from([0, 1, 5, 17]),
        stop=st.sampled_from([None, ["e", "\ufffd"]]),
        logprobs=st.sampled_from([None, 0, 2]),
    ).filter(lambda params: params.max_tokens or params.n == 1),
    st.integers(-1, 1),  # priority
    st.integers(0, 6),  # steps until it arrives, after the one before
    st.none() | st.integers(0, 8),  # pieces after which it is aborted
)


@given(st.lists(REQUESTS, min_size=1, max_size=8))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_comes_and_goes_each_has_its_own_answer(llm, alone, requests):
    async def follow(stream, num_pieces):
        deltas = []
        if num_pieces == 0:
            stream.abort()
        async for new in stream:
            deltas += new
            num_pieces = None if num_pieces is None else num_pieces - 1
            if num_pieces is not None and num_pieces <= 0:
                stream.abort()
        return deltas

    async def work(engine):
        tasks, streams = [], []
        for i, (prompt, params, priority, pause, num_pieces) in enumerate(requests):
            for _ in range(pause):
                await asyncio.sleep(0.0005)
            stream = engine.submit(prompt, params, request_id=str(i), priority=priority)
            streams.append(stream)
            tasks.append(asyncio.create_task(follow(stream, num_pieces)))
        return list(zip(streams, await asyncio.gather(*tasks), strict=True))

    seen = Seen()
    results = with_engine(llm, work, observers=[seen])
    assert len(seen.finished) == len(requests)
    for (prompt, params, _, _, num_pieces), (stream, deltas) in zip(requests, results, strict=True):
        expected = alone(prompt, params)
        stats = stream.stats
        for index, output in enumerate(expected.outputs):
            text, ids, logprobs, reasons = joined(deltas, index)
            assert len(reasons) == 1
            assert output.text.startswith(text)
            assert output.token_ids[: len(ids)] == ids
            assert (output.logprobs or [])[: len(logprobs)] == logprobs
            if num_pieces is None or reasons != ["abort"]:
                assert (text, ids, reasons) == (
                    output.text,
                    output.token_ids,
                    [output.finish_reason],
                )
            assert stats.finish_reasons[index] == reasons[0]
        check_stats(stats, expected)


def check_stats(stats, expected):
    """Fail unless the times are in order and the counts are those of the answer."""
    times = [getattr(stats, name) for name in TIMES]
    came = [time for time in times if time is not None]
    assert came == sorted(came)
    assert stats.arrived is not None
    assert stats.queued is not None
    assert stats.ended is not None
    assert stats.num_prompt_tokens == len(expected.prompt_token_ids)
    assert (stats.num_output_tokens > 0) == (stats.first_token is not None)
    assert (stats.first_token is None) == (stats.last_token is None)
    assert 0 <= stats.num_cached_tokens < stats.num_prompt_tokens
    assert stats.num_recomputed_tokens >= 0
    assert stats.waited_for in ("", "seats", "room", "prefix")
    if "abort" not in stats.finish_reasons:
        assert stats.num_output_tokens == sum(len(o.token_ids) for o in expected.outputs)
        assert stats.scheduled is not None
    assert stats.error is None


def test_what_observers_are_told_adds_up(llm):
    params = SamplingParams(n=2, seed=1, max_tokens=9, ignore_eos=True)

    async def work(engine):
        streams = [engine.submit(f"{i} x", params, request_id=str(i)) for i in range(5)]
        await asyncio.gather(*map(gather, streams))
        return streams

    seen = Seen()
    before = llm.core.num_prompt_tokens
    with_engine(llm, work, observers=[seen])
    assert sorted(name for name, _ in seen.firsts) == list("01234")
    assert sum(step.num_output_tokens for step in seen.steps) == 5 * 2 * 9
    assert sum(count for _, count in seen.gaps) == 5 * 2 * 8
    computed = sum(step.num_prompt_tokens for step in seen.steps)
    assert computed == llm.core.num_prompt_tokens - before
    recomputed = sum(step.num_recomputed_tokens for step in seen.steps)
    assert recomputed == sum(stats.num_recomputed_tokens for stats in seen.finished)
    assert all(seconds >= 0 for _, seconds in [*seen.firsts, *seen.gaps])
    for before, after in zip(seen.steps, seen.steps[1:], strict=False):
        assert before.began <= before.ended <= after.began
    for stats in seen.finished:
        first = next(seconds for name, seconds in seen.firsts if name == stats.request_id)
        assert first == stats.first_token_seconds
        assert stats.queue_seconds <= stats.first_token_seconds <= stats.seconds


@pytest.mark.parametrize(
    ("prompts", "reason"),
    [
        ([f"{i} x" for i in range(5)], "seats"),
        ([str(i) * 50 for i in range(4)], "room"),
        (["in the " * 6] * 2, "prefix"),
    ],
)
def test_why_a_request_waited(llm, prompts, reason):
    """All are there before the first step; the last one is passed over in it."""
    llm.core.cache.clear()

    async def work(engine):
        params = SamplingParams(max_tokens=1, ignore_eos=True, seed=0)
        hold = threading.Event()
        engine._commands.put(hold.wait)  # so that all of them are queued when it goes on
        streams = [engine.submit(prompt, params, request_id="") for prompt in prompts]
        hold.set()
        await asyncio.gather(*map(gather, streams))
        return [stream.stats.waited_for for stream in streams]

    reasons = with_engine(llm, work)
    assert reasons[0] == ""
    assert reasons[-1] == reason


def test_preemptions_are_counted(llm):
    """Four that grow to the whole pool, at once."""
    llm.core.cache.clear()
    params = SamplingParams(max_tokens=60, ignore_eos=True, seed=0)

    async def work(engine):
        streams = [engine.submit(f"{i}", params, request_id="") for i in range(4)]
        await asyncio.gather(*map(gather, streams))
        return [stream.stats for stream in streams]

    stats = with_engine(llm, work)
    assert sum(one.num_preemptions for one in stats) > 0
    assert sum(one.num_recomputed_tokens for one in stats) > 0
    assert {one.num_output_tokens for one in stats} == {60}


def test_a_full_queue_takes_no_more_until_one_has_ended(llm):
    async def work(engine):
        params = SamplingParams(max_tokens=40, ignore_eos=True)
        streams = [engine.submit("x", params, request_id="") for _ in range(engine.most_open)]
        with pytest.raises(QueueFullError, match="6 requests are open, and 6 may be"):
            engine.submit("x", params, request_id="")
        streams[0].abort()
        await gather(streams[0])
        streams.append(engine.submit("x", params, request_id=""))
        for stream in streams:
            stream.abort()
        await asyncio.gather(*map(gather, streams))

    with_engine(llm, work, max_waiting=2)


def test_a_request_that_is_refused_ends_alone(llm, alone):
    params = SamplingParams(max_tokens=5, seed=1)

    async def work(engine):
        good = engine.submit("hello", params, request_id="good")
        bad = engine.submit({"prompt_token_ids": [10**6]}, params, request_id="bad")
        with pytest.raises(InvalidRequestError, match="1000000"):
            await gather(bad)
        assert bad.ended
        assert bad.stats.finish_reasons == ["error"]
        assert bad.stats.ended >= bad.stats.queued >= bad.stats.arrived
        bad.abort()  # is no error
        return await gather(good)

    assert joined(with_engine(llm, work), 0)[0] == alone("hello", params).outputs[0].text


def test_what_raises_in_add_ends_that_request_alone(llm, alone, monkeypatch):
    params = SamplingParams(max_tokens=5, seed=1)
    add = llm.core.add_request

    def failing(request_id, ids, *args, **options):
        if ids == [9]:
            raise RuntimeError("injected")
        return add(request_id, ids, *args, **options)

    monkeypatch.setattr(llm.core, "add_request", failing)

    async def work(engine):
        good = engine.submit("hello", params, request_id="good")
        bad = engine.submit({"prompt_token_ids": [9]}, params, request_id="bad")
        with pytest.raises(EngineFaultError, match="injected"):
            await gather(bad)
        return await gather(good)

    assert joined(with_engine(llm, work), 0)[0] == alone("hello", params).outputs[0].text


@pytest.mark.parametrize("name", ["_note_scheduled", "untold", "_abort"])
def test_whatever_raises_in_the_thread_nobody_waits_for_ever(llm, alone, monkeypatch, name):
    params = SamplingParams(max_tokens=30, ignore_eos=True, seed=1)

    async def work(engine):
        stream = engine.submit("hello", params, request_id="")
        await anext(stream)

        def fail(*_):
            raise RuntimeError("injected")

        with monkeypatch.context() as patch:
            patch.setattr(stream if name == "untold" else engine, name, fail)
            if name == "_abort":
                stream.abort()
            with pytest.raises(EngineFaultError, match="injected"):
                await gather(stream)
        assert stream.stats.finish_reasons == ["error"]
        assert "injected" in stream.stats.error
        assert engine.fault is None
        return await gather(engine.submit("hello", params, request_id=""))

    assert joined(with_engine(llm, work), 0)[0] == alone("hello", params).outputs[0].text


def test_after_a_fault_choices_that_had_ended_keep_their_reason(llm, monkeypatch):
    params = SamplingParams(n=2, max_tokens=30, ignore_eos=True, seed=1, stop=["x never"])

    async def work(engine):
        stream = engine.submit("hello", params, request_id="")
        await anext(stream)

        def fail():
            raise RuntimeError("injected")

        def end_one():
            (first, _) = llm.core.scheduler.requests()
            llm.core.finish(first)
            stream.output.outputs[0].finish_reason = "stop"
            monkeypatch.setattr(llm.core, "step", fail)

        engine._commands.put(end_one)
        with pytest.raises(EngineFaultError):
            await gather(stream)
        monkeypatch.undo()
        return stream.stats.finish_reasons

    assert with_engine(llm, work) == ["stop", "error"]


def test_draining_and_closing(llm):
    params = SamplingParams(max_tokens=30, ignore_eos=True)

    async def main():
        async with AsyncEngine(llm) as engine:
            running = engine.submit("hello", params, request_id="")
            draining = asyncio.create_task(engine.drain(20))
            await asyncio.sleep(0)
            with pytest.raises(DrainingError):
                engine.submit("x", params, request_id="")
            await draining
            assert joined(await gather(running), 0)[3] == ["length"]
        async with AsyncEngine(llm) as engine:  # the same LLM serves the next one
            left = engine.submit("hello", params, request_id="")
        assert joined(await gather(left), 0)[3] == ["abort"]
        with pytest.raises(DrainingError):
            engine.submit("x", params, request_id="")

    asyncio.run(main())
    assert llm.generate("hello", SamplingParams(max_tokens=1))[0].finished


def test_threads_change_hands_quickly_while_an_engine_runs_and_as_before_after_it(llm):
    before = sys.getswitchinterval()

    async def work(engine):
        await gather(engine.submit("x", SamplingParams(max_tokens=1), request_id=""))
        slack = Path(f"/proc/{engine._thread.native_id}/timerslack_ns")
        return sys.getswitchinterval(), slack.read_text() if slack.exists() else "1"

    interval, slack = with_engine(llm, work)
    assert interval == pytest.approx(turns.SWITCH_INTERVAL) != pytest.approx(before)
    assert int(slack) == 1
    assert sys.getswitchinterval() == pytest.approx(before)


def test_the_llm_is_the_engine_s_alone(llm):
    from octavo.errors import ThreadError

    async def work(engine):
        await gather(engine.submit("x", SamplingParams(max_tokens=1), request_id=""))
        with pytest.raises(ThreadError):
            llm.generate("x")

    with_engine(llm, work)
