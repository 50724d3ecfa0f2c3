"""SamplingParams: defaults, normalisation, and what is refused with which field named."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from typing import Any

import numpy as np
import pytest

from octavo.errors import InvalidRequestError, OctavoError
from octavo.sampling.params import GREEDY_BELOW, SamplingParams

NAN, INF = float("nan"), float("inf")


def refused(**values: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**values)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, OctavoError)
    return caught.value


def test_defaults_are_those_of_vllm():
    assert dataclasses.asdict(SamplingParams()) == {
        "n": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "seed": None,
        "max_tokens": 16,
        "min_tokens": 0,
        "stop": (),
        "include_stop_str_in_output": False,
        "stop_token_ids": (),
        "ignore_eos": False,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "logit_bias": None,
        "bad_words": (),
        "allowed_token_ids": None,
        "logprobs": None,
        "prompt_logprobs": None,
        "skip_special_tokens": True,
        "structured_outputs": None,
    }


FULL = SamplingParams(
    n=3,
    temperature=0.7,
    top_p=0.9,
    top_k=40,
    min_p=0.05,
    seed=-5,
    max_tokens=None,
    min_tokens=2,
    stop=["a", "b"],
    stop_token_ids=[7],
    repetition_penalty=1.1,
    frequency_penalty=-2,
    presence_penalty=2,
    logit_bias={1: 5, 2: -1},
    bad_words="bad",
    allowed_token_ids=range(4),
    logprobs=0,
    prompt_logprobs=20,
)


@pytest.mark.parametrize("params", [SamplingParams(), FULL])
def test_every_copy_is_equal(params: SamplingParams):
    values = dataclasses.asdict(params)
    assert SamplingParams(**values) == params
    assert SamplingParams(**json.loads(json.dumps(values))) == params
    assert dataclasses.replace(params) == copy.deepcopy(params) == params
    assert pickle.loads(pickle.dumps(params)) == params
    assert hash(copy.copy(params)) == hash(params)


def test_frozen_and_without_a_dict():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().n = 2  # type: ignore[misc]
    assert not hasattr(SamplingParams(), "__dict__")


def test_repr_evaluates_to_an_equal_value():
    assert eval(repr(FULL)) == FULL


def test_an_unknown_name_is_named_with_the_nearest_known():
    error = refused(temprature=0.5)
    assert error.param == "temprature"
    assert "'temprature'" in str(error)
    assert "'temperature'" in str(error)


def test_an_unlike_unknown_name_lists_the_known():
    error = refused(zzqx=1)
    assert error.param == "zzqx"
    assert "temperature, top_p, top_k" in str(error)


def test_an_unknown_name_in_replace_is_refused():
    with pytest.raises(InvalidRequestError, match="best_of"):
        dataclasses.replace(SamplingParams(), best_of=2)  # type: ignore[call-arg]


def test_positional_values_are_refused():
    with pytest.raises(TypeError):
        SamplingParams(1)  # type: ignore[misc]


@pytest.mark.parametrize(
    "name",
    [
        "temperature",
        "top_p",
        "min_p",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
    ],
)
@pytest.mark.parametrize("value", [NAN, INF, -INF, np.float32("nan"), 10**400, "1", None, True, []])
def test_no_float_may_be_nan_infinite_or_no_number(name: str, value: object):
    error = refused(**{name: value})
    assert error.param == name
    assert str(error).startswith(f"{name}=")


@pytest.mark.parametrize(
    "name",
    ["n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs"],
)
@pytest.mark.parametrize("value", [1.0, NAN, "1", True, False, np.bool_(True), [1]])
def test_no_integer_may_be_anything_else(name: str, value: object):
    assert refused(**{name: value}).param == name


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("n", [1, 128], [0, -1, 129]),
        ("temperature", [0, 0.0, 1e-9, 2, 1e300], [-1e-9, -1]),
        ("top_p", [1e-9, 0.5, 1], [0, 0.0, -0.1, 1.0000001]),
        ("top_k", [-1, 0, 1, 10**9], [-2]),
        ("min_p", [0, 1], [-0.1, 1.1]),
        ("seed", [-(2**63), 0, 2**64 - 1], [-(2**63) - 1, 2**64]),
        ("max_tokens", [0, 1, 10**9], [-1]),
        ("min_tokens", [0, 16], [-1, 17]),
        ("repetition_penalty", [0.001, 1, 1000], [0, -1, 0.0001, 1001]),
        ("frequency_penalty", [-2, 2], [-2.1, 2.1]),
        ("presence_penalty", [-2, 2], [-2.1, 2.1]),
        ("logprobs", [0, 20], [-1, 21]),
        ("prompt_logprobs", [0, 20], [-1, 21]),
    ],
)
def test_ranges(name: str, good: list[float], bad: list[float]):
    for value in good:
        SamplingParams(**{name: value})
    for value in bad:
        error = refused(**{name: value})
        assert error.param == name
        assert f"{name}={value!r}" in str(error)


def test_numpy_scalars_become_pythons_own():
    params = SamplingParams(
        n=np.int64(2),  # type: ignore[arg-type]
        top_p=np.float32(0.5),  # type: ignore[arg-type]
        seed=np.uint64(2**64 - 1),  # type: ignore[arg-type]
        stop_token_ids=np.array([1, 2]),  # type: ignore[arg-type]
        logit_bias={np.int32(3): np.float16(1)},  # type: ignore[dict-item]
    )
    assert type(params.n) is int
    assert type(params.top_p) is float
    assert params.seed == 2**64 - 1
    assert params.stop_token_ids == (1, 2)
    assert params.logit_bias == {3: 1.0}
    assert [type(key) for key in params.logit_bias] == [int]


def test_both_spellings_of_no_top_k_are_equal():
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)


@pytest.mark.parametrize(("seed", "key"), [(-1, 2**64 - 1), (-(2**63), 2**63), (5, 5)])
def test_seeds_are_taken_modulo_two_to_the_64(seed: int, key: int):
    assert SamplingParams(seed=seed).seed == key


@pytest.mark.parametrize(
    ("temperature", "greedy"), [(0, True), (1e-9, True), (GREEDY_BELOW, False), (1.0, False)]
)
def test_tiny_temperatures_are_greedy(temperature: float, greedy: bool):
    assert SamplingParams(temperature=temperature).greedy is greedy


def test_min_tokens_needs_room():
    assert SamplingParams(min_tokens=99, max_tokens=None).min_tokens == 99
    error = refused(min_tokens=2, max_tokens=1)
    assert error.param == "min_tokens"
    assert "max_tokens=1" in str(error)


@pytest.mark.parametrize(
    ("stop", "strings"), [(None, ()), ("a", ("a",)), ([], ()), (["a", "b"], ("a", "b"))]
)
def test_stop_becomes_a_tuple(stop: Any, strings: tuple[str, ...]):
    assert SamplingParams(stop=stop).stop_strings == strings


@pytest.mark.parametrize("name", ["stop", "bad_words"])
@pytest.mark.parametrize("value", ["", ["a", ""], [1], b"a", 5, {"a": 1}])
def test_bad_strings_are_refused(name: str, value: object):
    assert refused(**{name: value}).param == name


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids"])
@pytest.mark.parametrize("value", [[-1], [1.5], [True], ["1"], "1", 5, {1: 2}])
def test_bad_token_ids_are_refused(name: str, value: object):
    assert refused(**{name: value}).param == name


def test_allowing_nothing_is_refused():
    error = refused(allowed_token_ids=[])
    assert error.param == "allowed_token_ids"
    assert "at least 1" in str(error)


def test_bias_keys_of_json_become_integers():
    assert SamplingParams(logit_bias={"12": 1}).logit_bias == {12: 1.0}  # type: ignore[dict-item]


def test_huge_finite_biases_clamp():
    assert SamplingParams(logit_bias={1: 1e308, 2: -1e308}).logit_bias == {1: 100.0, 2: -100.0}


@pytest.mark.parametrize(
    "value",
    [{"AI": -100}, {1.5: 1}, {True: 1}, {1: INF}, {1: NAN}, {1: "1"}, {1: None}, [1], "x"],
)
def test_bad_biases_are_refused(value: object):
    assert refused(logit_bias=value).param == "logit_bias"


@pytest.mark.parametrize(
    "name", ["include_stop_str_in_output", "ignore_eos", "skip_special_tokens"]
)
@pytest.mark.parametrize("value", [0, 1, "true", None])
def test_booleans_are_booleans(name: str, value: object):
    assert refused(**{name: value}).param == name


def test_long_values_are_cut_in_messages():
    assert len(str(refused(n="x" * 10_000))) < 250


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {100: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("allowed_token_ids", [0, 100]),
        ("stop_token_ids", [101]),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(name: str, value: Any):
    params = SamplingParams(**{name: value})
    with pytest.raises(InvalidRequestError, match=f"{name} has token id .*0 to 99") as caught:
        params.validate_for(100)
    assert caught.value.param == name


def test_ids_inside_the_vocabulary_pass():
    SamplingParams(logit_bias={99: 1}, allowed_token_ids=[0], stop_token_ids=[99]).validate_for(100)
    SamplingParams().validate_for(1)
