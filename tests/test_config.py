"""EngineConfig: every value out of range is named with its limit; what is automatic says why."""

from __future__ import annotations

import dataclasses

import pytest

from octavo.config import EngineConfig, format_bytes, parse_bytes
from octavo.errors import ConfigError, shown

GIB = 1 << 30

BAD_VALUES = [
    *[(name, value, "at least 1")
      for name in ("max_num_seqs", "max_num_batched_tokens",
                   "num_kv_blocks", "max_model_len")
      for value in (0, -1, 1.0, "4", True, float("nan"), [])],
    *[("num_threads", value, "from 1 to 1024")
      for value in (0, -1, 1.0, "4", True, float("nan"), [], 1025, 10**6)],
    *[("block_size", value, "from 1 to 65536")
      for value in (0, -1, 1.0, "4", True, float("nan"), [], None, 65537, 2**32)],
    ("max_num_seqs", None, "at least 1"),
    ("seed", 1.5, "whole number"),
    ("seed", None, "whole number"),
    ("seed", -(2**63) - 1, str(-(2**63))),
    ("seed", 2**64, str(2**64 - 1)),
    ("eviction_policy", [1], "a policy's name"),
    ("enable_prefix_caching", 1, "true or false"),
    ("enable_prefix_caching", "yes", "true or false"),
    ("model", "", "a name or a path"),
    ("model", 7, "a name or a path"),
    ("kv_cache_dtype", "int8", "float16, float32"),
    ("kv_cache_dtype", [], "float16, float32"),
    *[("quantization", value, "one of int8") for value in ("int4", "", 8, [])],
    ("scheduling_policy", "fifo", "continuous, static"),
    ("scheduling_policy", None, "continuous, static"),
    *[("kv_cache_memory", value, "kB, MB, GB, KiB, MiB or GiB, such as 2GiB")
      for value in (0, -1, "", "0", "-1GiB", "2TiB", "lots", "1e9", True, float("inf"), [],
                    "9" * 400)],
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "limit"), BAD_VALUES, ids=lambda value: repr(value)[:24])
def test_a_value_out_of_range_is_named_with_its_limit(name: str, value: object, limit: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**{name: value})
    message = str(caught.value)
    assert caught.value.param == name
    assert name in message
    assert shown(value) in message
    assert limit in message
    assert isinstance(caught.value, ValueError)


def test_every_field_has_a_bad_value_above_or_is_checked_when_the_engine_is_built() -> None:
    fields = {field.name for field in dataclasses.fields(EngineConfig)}
    assert fields - {name for name, _, _ in BAD_VALUES} == {"backend"}
    assert all(field.metadata["help"] for field in dataclasses.fields(EngineConfig))


def test_a_budget_that_starves_the_running_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens=7.*max_num_seqs=8"):
        EngineConfig(max_num_seqs=8, max_num_batched_tokens=7)
    EngineConfig(max_num_seqs=8, max_num_batched_tokens=8)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("max_num_seq", "did you mean 'max_num_seqs'"), ("zzz", "known are model, backend")],
)
def test_an_unknown_setting_is_refused_with_the_nearest_known(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint) as caught:
        EngineConfig.from_kwargs(**{name: 1})
    assert caught.value.param == name


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig().block_size = 8


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        (123, 123),
        ("123", 123),
        ("123b", 123),
        ("2GiB", 2 << 30),
        ("2g", 2 * 10**9),
        ("500MB", 500 * 10**6),
        ("1.5GiB", 3 << 29),
        (" 64 KiB ", 64 << 10),
        ("1ki", 1024),
    ],
)
def test_sizes_can_be_written_as_people_do(text: int | str, size: int) -> None:
    assert parse_bytes(text, "kv_cache_memory") == size


def test_sizes_are_shown_as_people_read_them() -> None:
    shown = [format_bytes(n) for n in (0, 1023, 1024, 98_362_432, 3 << 29, 5 << 40)]
    assert shown == ["0 B", "1023 B", "1.0 KiB", "93.8 MiB", "1.5 GiB", "5120.0 GiB"]


def resolve(config: EngineConfig, available: int = 8 * GIB, context: int = 2048):
    return config.resolve(
        context_length=context, kv_bytes_per_token=1 << 16, available_bytes=available
    )  # a block of 16 tokens is 1 MiB


@pytest.mark.parametrize(
    ("settings", "available", "num_blocks", "why"),
    [
        ({}, 2 * GIB, 1024, "half of the 2.0 GiB free"),
        ({}, 100 * GIB, 4096, "4.0 GiB unless asked; 100.0 GiB free"),
        ({"kv_cache_memory": "1GiB"}, 2 * GIB, 1024, "kv_cache_memory"),
        ({"kv_cache_memory": (8 << 20) - 1}, 2 * GIB, 7, "kv_cache_memory"),
        ({"kv_cache_memory": "6GiB"}, 6 * GIB, 6144, "kv_cache_memory"),
        ({"num_kv_blocks": 5}, 2 * GIB, 5, "num_kv_blocks"),
        ({"num_kv_blocks": 5, "kv_cache_memory": "1GiB"}, 2 * GIB, 5, "num_kv_blocks"),
        ({"block_size": 32}, 2 * GIB, 512, "half of"),
    ],
)
def test_the_pool_is_sized_from_memory_and_says_why(
    settings: dict[str, object], available: int, num_blocks: int, why: str
) -> None:
    resolved = resolve(EngineConfig(**settings), available)
    assert resolved.num_kv_blocks == num_blocks
    (note,) = resolved.notes
    assert f"{num_blocks} blocks of {resolved.config.block_size} tokens" in note
    assert why in note


@pytest.mark.parametrize(
    ("settings", "available", "param"),
    [
        ({"num_kv_blocks": 3000}, 2 * GIB, "num_kv_blocks"),
        ({"kv_cache_memory": "3GiB"}, 2 * GIB, "kv_cache_memory"),
        ({"kv_cache_memory": 1000}, 2 * GIB, "kv_cache_memory"),
        ({}, 1 << 20, "kv_cache_memory"),
        ({}, 0, "kv_cache_memory"),
        ({"max_model_len": 2049}, 8 * GIB, "max_model_len"),
    ],
)
def test_what_cannot_be_had_is_refused(
    settings: dict[str, object], available: int, param: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(EngineConfig(**settings), available)
    assert caught.value.param == param


def test_max_model_len_is_the_context_or_what_was_asked_or_what_the_pool_holds() -> None:
    assert resolve(EngineConfig()).max_model_len == 2048
    assert resolve(EngineConfig(max_model_len=100)).max_model_len == 100
    assert resolve(EngineConfig(num_kv_blocks=128)).warnings == ()
    clamped = resolve(EngineConfig(num_kv_blocks=3))
    assert clamped.max_model_len == 48
    (warning,) = clamped.warnings
    assert "48 instead of 2048" in warning


@pytest.mark.parametrize(
    ("given", "stored"), [("auto", "float16"), ("float16", "float16"), ("float32", "float32")]
)
def test_keys_and_values_are_stored_as_asked(given: str, stored: str) -> None:
    assert EngineConfig(kv_cache_dtype=given).kv_dtype == stored
