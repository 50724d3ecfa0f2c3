"""Runs against a server that does as it is told: counts and fields, never times."""

import asyncio
import sys

import pytest

from fake_openai import Script, Serving
from octavo.bench.serve.metrics import result_fields
from octavo.bench.serve.run import LoadTest
from octavo.bench.serve.settings import DatasetSettings, Reporting, Sampling, Target, Traffic


def bench(server, *, target=None, dataset=None, traffic=None, sampling=None, **more):
    """Run a small load; return the model's name, the runs and the first one's fields."""
    small = {"num_prompts": 6, "random_input_len": 5, "random_output_len": 3}
    test = LoadTest(
        Target(**{"base_url": server.url, **(target or {})}),
        DatasetSettings(**{**small, **(dataset or {})}),
        Traffic(**(traffic or {})),
        Sampling(**(sampling or {})),
        **more,
    )
    model, runs = asyncio.run(test.run())
    return model, runs, result_fields(runs[0], Reporting(save_detailed=True))


def test_a_run_counts_what_the_server_sent():
    done = []
    with Serving(Script()) as server:
        model, _, fields = bench(server, keep_text=True, done=done.append)
    assert model == "org/fake"
    assert (fields["completed"], fields["failed"]) == (6, 0)
    assert (fields["total_input_tokens"], fields["total_output_tokens"]) == (30, 18)
    assert (fields["total_cached_tokens"], fields["cached_ratio"]) == (18, 18 / 30)
    assert fields["generated_texts"] == [" t0 t1 t2"] * 6
    assert [len(itls) for itls in fields["itls"]] == [2] * 6
    assert all(
        0 < ttft <= latency
        for ttft, latency in zip(fields["ttfts"], fields["latencies"], strict=True)
    )
    assert fields["errors"] == [""] * 6
    assert sum(done) == 6


def test_a_body_has_the_prompt_the_model_and_what_was_asked_for():
    asked = {
        "temperature": 0.0, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "logprobs": 2,
        "extra_body": '{"seed": 7, "top_k": 6}',
    }  # fmt: skip
    target = {
        "header": ["X-A=1", "User-Agent=me"], "api_key": "secret", "request_id_prefix": "id-",
        "model": "m", "served_model_name": "served",
    }  # fmt: skip
    with Serving(Script()) as server:
        bench(server, target=target, sampling=asked, dataset={"num_prompts": 1})
        [body], [headers] = server.bodies, server.headers
        assert server.paths == ["/v1/completions"]
    prompt = body.pop("prompt")
    assert [type(each) for each in prompt] == [int] * 5
    assert body == {
        "model": "served", "max_tokens": 3, "stream": True,
        "stream_options": {"include_usage": True}, "temperature": 0.0, "top_p": 0.9, "top_k": 6,
        "min_p": 0.1, "ignore_eos": True, "logprobs": 2, "seed": 7,
    }  # fmt: skip
    assert headers["authorization"] == "Bearer secret"
    assert (headers["x-a"], headers["user-agent"]) == ("1", "me")
    assert headers["x-request-id"] == "id-0"
    assert "accept-encoding" not in headers


def test_a_chat_sends_messages_and_its_role_chunk_is_no_token(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"prompt": "hi", "output_tokens": 4}\n')
    with Serving(Script()) as server:
        _, _, fields = bench(
            server, target={"backend": "openai-chat", "base_url": f"{server.url}/v1/"},
            dataset={"dataset_name": "custom", "dataset_path": str(path)},
            sampling={"logprobs": 2, "ignore_eos": False},
        )  # fmt: skip
        assert server.paths == ["/v1/models", "/v1/chat/completions"]
        [body] = server.bodies
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert (body["max_completion_tokens"], body["logprobs"], body["top_logprobs"]) == (4, True, 2)
    assert "ignore_eos" not in body
    assert fields["total_input_tokens"] == 11  # as the server counts
    assert [len(itls) for itls in fields["itls"]] == [3]


@pytest.mark.parametrize(("usage", "num_tokens"), [(True, 18), (False, 12)])
def test_lengths_are_the_servers_or_else_a_token_a_chunk(usage, num_tokens):
    script = Script(tokens_per_chunk=2, usage=usage, newline="\r\n")
    with Serving(script) as server:
        _, _, fields = bench(server)
    assert fields["total_output_tokens"] == num_tokens
    assert fields["total_input_tokens"] == 30
    assert (fields["total_cached_tokens"] is None) == (not usage)


def test_failures_are_counted_and_their_messages_kept():
    with Serving(Script(fail_every=3)) as server:
        _, _, fields = bench(server)
    assert (fields["completed"], fields["failed"]) == (4, 2)
    assert sorted(fields["errors"]) == [""] * 4 + ["HTTP 500: no, by the script"] * 2
    assert fields["total_output_tokens"] == 12


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (Script(error_from=1), "broke in the middle"),
        (Script(cut=True), "cut short"),
        (Script(status=429), "HTTP 429: no, by the script"),
        (Script(status=307), "HTTP 307"),
    ],
)
def test_what_is_no_whole_answer_is_a_failure(script, error):
    with Serving(script) as server:
        _, _, fields = bench(server)
        assert server.paths[1:] == ["/v1/completions"] * 6  # a redirect is not followed
    assert (fields["completed"], fields["failed"]) == (0, 6)
    assert all(error in each for each in fields["errors"])


def test_no_proxy_of_the_environment_is_used(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with Serving(Script()) as server:
        assert bench(server)[2]["completed"] == 6


def test_each_limit_of_concurrency_is_a_run_with_prompts_of_its_own():
    with Serving(Script(delay=0.002)) as server:
        _, runs, _ = bench(server, traffic={"max_concurrency": "1,2"})
        prompts = [body["prompt"] for body in server.bodies]
        assert server.open_most == 2
    assert [run.max_concurrency for run in runs] == [1, 2]
    fields = [result_fields(run, Reporting()) for run in runs]
    assert [each["max_concurrent_requests"] for each in fields] == [1, 2]
    assert len({tuple(prompt) for prompt in prompts}) == 12
    waited = [answer.start - answer.arrival for answer in runs[0].answers]
    assert waited == sorted(waited)
    assert waited[-1] > sum(answer.latency for answer in runs[0].answers[:-1])


def test_warm_ups_are_copies_of_a_request_that_no_run_has():
    with Serving(Script()) as server:
        _, _, fields = bench(server, traffic={"num_warmups": 3, "max_concurrency": "2,3"})
        prompts = [tuple(body["prompt"]) for body in server.bodies]
    assert len(prompts) == 2 * (3 + 6)
    assert len(set(prompts)) == 1 + 2 * 6
    assert prompts[:3] == [prompts[0]] * 3
    assert prompts[9:12] == [prompts[0]] * 3
    assert fields["completed"] == 6


def test_the_ready_check_waits_for_a_success(monkeypatch):
    monkeypatch.setattr("octavo.bench.serve.run._RETRY_SECONDS", 0.01)
    with Serving(Script(not_ready=2)) as server:
        _, _, fields = bench(server, traffic={"ready_check_timeout_sec": 30})
        assert len(server.bodies) == 2 + 1 + 6
    assert (fields["completed"], fields["failed"]) == (6, 0)


def test_the_ready_check_gives_up(monkeypatch):
    monkeypatch.setattr("octavo.bench.serve.run._RETRY_SECONDS", 0.01)
    with Serving(Script(status=503)) as server, pytest.raises(ConnectionError, match="not ready"):
        bench(server, traffic={"ready_check_timeout_sec": 0.05})


def test_a_server_that_is_not_there_is_told():
    with Serving(Script()) as server:
        pass
    with pytest.raises(ConnectionError, match="/v1/models does not answer"):
        bench(server)
    _, _, fields = bench(server, target={"model": "m"})
    assert fields["failed"] == 6


def test_arrivals_are_kept_to():
    # The last of 6 comes at 6 / 60 s; a rate may not be outrun.
    with Serving(Script()) as server:
        _, runs, _ = bench(server, traffic={"request_rate": 60.0})
    assert runs[0].answers[-1].arrival - runs[0].begin >= 6 / 60
    starts = [answer.start for answer in runs[0].answers]
    assert starts == sorted(starts)


def test_a_trace_says_its_own_times(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("arrival_ns,input_tokens,output_tokens\n" + "".join(
        f"{i * 100_000_000},4,2\n" for i in range(3)
    ))  # fmt: skip
    traced = {"dataset_name": "timed_trace", "dataset_path": str(path), "time_scale": 0.5}
    with Serving(Script()) as server:
        _, runs, fields = bench(server, dataset=traced)
        assert [body["ignore_eos"] for body in server.bodies] == [True] * 3
        _, untimed, _ = bench(server, dataset={**traced, "self_timed": False})
    assert fields["total_output_tokens"] == 6
    for i, answer in enumerate(runs[0].answers):
        assert answer.arrival - runs[0].begin >= i * 0.05
    assert len(untimed[0].answers) == 3


def test_a_cancelled_run_ends_with_what_it_has():
    with Serving(Script(delay=0.005)) as server:
        test = LoadTest(
            Target(base_url=server.url),
            DatasetSettings(num_prompts=500, random_input_len=5, random_output_len=3),
            Traffic(max_concurrency="2,4"),
            Sampling(),
        )

        async def cancelled():
            task = asyncio.create_task(test.run())
            while len(server.bodies) < 6:
                await asyncio.sleep(0.005)
            task.cancel()
            return await task

        _, [run] = asyncio.run(cancelled())
    assert run.is_interrupted
    fields = result_fields(run, Reporting())
    assert 4 <= fields["completed"] < 20
    assert fields["failed"] == 0
    assert fields["completed"] + fields["unfinished"] == 500


def test_a_missing_client_is_told_with_its_remedy(monkeypatch):
    from octavo.errors import ConfigError

    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "octavo.bench.serve.client")
    with pytest.raises(ConfigError, match=r"pip install 'octavo\[serve\]'"):
        import octavo.bench.serve.client  # noqa: F401
