"""Schemathesis: what `/openapi.json` says of bodies and answers is so, whatever is sent."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from octavo.openai.shape import SHAPE_FIELDS

OPERATIONS = [
    ("post", "/v1/completions"),
    ("post", "/v1/chat/completions"),
    ("post", "/tokenize"),
    ("post", "/detokenize"),
    ("get", "/v1/models"),
    ("get", "/v1/models/{name}"),
    ("get", "/version"),
    ("get", "/health"),
    ("get", "/ready"),
    ("get", "/metrics"),
]
NUM_EXAMPLES = {"post": 40, "get": 5}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def small(run_server):
    """A server whose answers are short."""
    with run_server(max_model_len=32, max_num_seqs=32) as server:
        yield server
        server.check_idle()


@pytest.fixture(scope="module")
def openapi(small):
    return schemathesis.openapi.from_url(f"{small.url}/openapi.json")


def test_every_route_is_in_the_schema(openapi):
    found = [result.ok() for result in openapi.get_all_operations()]
    assert {(one.method.lower(), one.path) for one in found} == set(OPERATIONS)


def check_answers(operation, mode, num_examples, change=lambda body: body):
    """Send what schemathesis makes of an operation; return the statuses and types that came."""
    answers = set()

    @seed(0)
    @settings(
        max_examples=num_examples,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case):
        if isinstance(case.body, dict):
            case.body = change(case.body)
        response = case.call(timeout=30)
        case.validate_response(response, checks=CHECKS)
        answers.add((response.status_code, response.headers["content-type"][0].split(";")[0]))
        if response.status_code == 400 and isinstance(case.body, dict):
            # What is refused is a field that is there, or one that must be.
            param = response.json()["error"]["param"].partition("[")[0]
            assert param in case.body or param in ("prompt", "messages", "tokens")

    check()
    return answers


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_answer_is_as_documented(openapi, method, path):
    answers = check_answers(openapi[path][method], GenerationMode.POSITIVE, NUM_EXAMPLES[method])
    assert answers & {(200, "application/json"), (200, "text/plain"), (404, "application/json")}


@pytest.mark.parametrize("path", [path for method, path in OPERATIONS if method == "post"])
def test_what_is_not_as_documented_harms_nobody(openapi, path):
    answers = check_answers(openapi[path]["post"], GenerationMode.NEGATIVE, NUM_EXAMPLES["post"])
    assert (400, "application/json") in answers


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_whatever_is_documented_is_answered(openapi, path, stream):
    """Combinations of the fields, made small enough for the model to answer most of them."""

    def small(body):
        body.pop("model", None)
        body["stream"] = stream
        body.pop("prompt_logprobs" if stream else "stream_options", None)
        if "prompt" in body:
            body["prompt"] = _small(body["prompt"])
        for message in body.get("messages", ()):
            message.update(role="user", content="x")
        body["messages"] = body.get("messages", [])[:1]
        if body.get("allowed_token_ids") or body.get("bad_words") or body.get("logit_bias"):
            for name in SHAPE_FIELDS:  # with those, a shape may leave no token at all
                body.pop(name, None)
        for name in ("stop_token_ids", "allowed_token_ids"):
            if body.get(name):
                body[name] = [i % 288 for i in body[name]]
        if body.get("logit_bias"):
            body["logit_bias"] = {"5": 1}
        if body.get("n"):
            body["n"] = 1 + body["n"] % 3
        for name in ("max_tokens", "max_completion_tokens", "min_tokens", "top_logprobs"):
            body.pop(name, None)
        return body

    answers = check_answers(openapi[path]["post"], GenerationMode.POSITIVE, 60, small)
    assert (200, "text/event-stream" if stream else "application/json") in answers


def _small(prompt):
    if isinstance(prompt, str):
        return prompt[:3]
    if isinstance(prompt, list):
        return [_small(item) for item in prompt[:4]]
    return prompt % 288
