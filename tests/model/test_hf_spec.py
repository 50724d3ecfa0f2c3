"""config.json is read in the style of transformers 4 and of 5; what does not fit is refused."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from family_cases import NAMES, load_case
from octavo.errors import ModelFileError
from octavo.model.hf_spec import spec_from_hf
from octavo.model.spec import LayerSpec, RopeSpec
from octavo.model.weights import tensor_shapes

PATH = "folder/config.json"

QWEN25_05B = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.1",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    """Return a case's config.json with keys changed; None removes one."""
    config = {**load_case(name).config, **changes}
    return {key: value for key, value in config.items() if changes.get(key, 0) is not None}


def old_style(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json as transformers 4 wrote it."""
    old = {**config, "torch_dtype": config["dtype"], "transformers_version": "4.46.0"}
    for key in ("dtype", "layer_types", "_sliding_window_pattern"):
        old.pop(key, None)
    if "_sliding_window_pattern" in config:
        old["sliding_window_pattern"] = config["_sliding_window_pattern"]
    parameters = dict(old.pop("rope_parameters", {}))
    if "full_attention" in parameters:
        old["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
        parameters = dict(parameters["full_attention"])
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in parameters:
            old[key] = parameters.pop(key)
    kind = parameters.pop("rope_type", "default")
    if "original_max_position_embeddings" in config:
        parameters.pop("original_max_position_embeddings", None)
    old["rope_scaling"] = None if kind == "default" else {"type": kind, **parameters}
    return old


@pytest.mark.parametrize("name", NAMES)
def test_the_old_style_says_the_same(name: str) -> None:
    config = load_case(name).config
    assert spec_from_hf(old_style(config), PATH) == spec_from_hf(config, PATH)


def test_a_config_of_the_hub() -> None:
    spec = spec_from_hf(QWEN25_05B, PATH)
    assert spec.layers == (LayerSpec(RopeSpec(theta=1e6, dim=64, layout="half")),) * 24
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (14, 2, 64)
    assert (spec.hidden_size, spec.intermediate_size, spec.vocab_size) == (896, 4864, 151936)
    assert (spec.context_length, spec.norm_eps) == (32768, 1e-6)
    assert spec.tied_embeddings
    assert spec.attention_bias
    assert not spec.projection_bias


def test_windows_of_some_layers() -> None:
    windowed = {**QWEN25_05B, "use_sliding_window": True, "sliding_window": 4096}
    windows = [layer.window for layer in spec_from_hf(windowed, PATH).layers]
    assert windows == [None] * 21 + [4096] * 3
    gemma = spec_from_hf(config_of("gemma3"), PATH)
    assert [layer.window for layer in gemma.layers] == [8, 8, 8, 8, 8, None, 8]
    thetas = [layer.rope and (layer.rope.theta, layer.rope.factors) for layer in gemma.layers]
    assert thetas[4:6] == [(100.0, None), (1000.0, (8.0,) * 8)]
    assert spec_from_hf(config_of("mistral", sliding_window=64), PATH).cache_window is None
    off = {**config_of("mistral"), "sliding_window": None}
    assert spec_from_hf(off, PATH).cache_window is None


def test_layers_without_rope() -> None:
    spec = spec_from_hf(config_of("smollm3"), PATH)
    assert [layer.rope is None for layer in spec.layers] == [False, False, False, True, False]
    own = spec_from_hf(config_of("smollm3", no_rope_layers=[1, 0, 1, 1, 0]), PATH)
    assert [layer.rope is None for layer in own.layers] == [False, True, False, False, True]
    every = config_of("smollm3", no_rope_layers=None, no_rope_layer_interval=2, layer_types=None)
    layers = spec_from_hf(every, PATH).layers
    assert [layer.rope is None for layer in layers] == [False, True, False, True, False]
    windowed = config_of("smollm3", use_sliding_window=True, sliding_window=9, layer_types=None)
    assert [layer.window for layer in spec_from_hf(windowed, PATH).layers] == [
        *[None] * 3,
        9,
        None,
    ]


def test_fields_that_change_nothing_are_ignored() -> None:
    config = config_of(
        "llama",
        pretraining_tp=2,
        attention_dropout=0.1,
        sliding_window=5,  # LlamaForCausalLM does not read it
        auto_map={"AutoModel": "x"},
        unsloth_version="1",
        final_logit_softcapping=0.0,
        partial_rotary_factor=1e308,  # without a scaling only Phi-3's class reads it
    )
    assert spec_from_hf(config, PATH) == spec_from_hf(config_of("llama"), PATH)


def test_absent_fields_have_the_classes_defaults() -> None:
    spec = spec_from_hf(config_of("llama", head_dim=8), PATH)
    bare = config_of("llama", tie_word_embeddings=None, rope_parameters=None, head_dim=None)
    assert spec_from_hf(bare, PATH) == spec
    gemma = config_of("gemma3_local", tie_word_embeddings=None, rope_parameters=None)
    assert spec_from_hf(gemma, PATH) == spec_from_hf(config_of("gemma3_local"), PATH)
    heads = spec_from_hf(config_of("llama", head_dim=8, num_key_value_heads=None), PATH)
    assert heads == replace(spec, num_kv_heads=4)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("llama", {"architectures": ["MambaForCausalLM"]}, ["'MambaForCausalLM'", "Qwen3ForC"]),
        ("llama", {"architectures": None}, ["architectures is missing"]),
        ("llama", {"architectures": []}, ["architectures has 0 values"]),
        ("llama", {"hidden_size": None}, ["hidden_size is missing"]),
        ("gpt2", {"n_embd": None}, ["n_embd is missing"]),
        ("llama", {"hidden_size": 33, "head_dim": None}, ["hidden_size is 33", "4 heads"]),
        ("llama", {"num_key_value_heads": 3}, ["num_attention_heads is 4", "3"]),
        ("llama", {"num_hidden_layers": 2**31}, ["num_hidden_layers is 2147483648", "4096"]),
        ("llama", {"hidden_act": "gelu"}, ["hidden_act is 'gelu'"]),
        ("gemma3", {"hidden_activation": "relu"}, ["hidden_activation is 'relu'"]),
        ("gpt2", {"activation_function": "gelu"}, ["activation_function is 'gelu'"]),
        ("llama", {"attention_bias": True}, ["attention_bias is true"]),
        ("llama", {"mlp_bias": True}, ["mlp_bias is True"]),
        ("llama", {"num_local_experts": 8}, ["num_local_experts is 8"]),
        ("llama", {"quantization_config": {"bits": 4}}, ["quantization_config", "GGUF"]),
        ("llama", {"tie_word_embeddings": 1}, ["tie_word_embeddings", "true or false"]),
        ("gemma3", {"final_logit_softcapping": 30.0}, ["final_logit_softcapping is 30.0"]),
        ("gemma3", {"attn_logit_softcapping": 50.0}, ["attn_logit_softcapping is 50.0"]),
        ("gemma3", {"use_bidirectional_attention": True}, ["use_bidirectional_attention"]),
        ("gemma3", {"query_pre_attn_scalar": None}, ["query_pre_attn_scalar is missing"]),
        ("gemma3", {"sliding_window": None}, ["sliding_window is missing"]),
        ("gemma3", {"layer_types": ["full_attention"]}, ["layer_types has 1 values", "7"]),
        ("qwen2", {"layer_types": ["chunked_attention"] * 3}, ["'chunked_attention'"]),
        ("mistral", {"sliding_window": None}, ["sliding_window is missing"]),
        ("gpt2", {"scale_attn_weights": False}, ["scale_attn_weights"]),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, ["scale_attn_by_inverse"]),
        ("llama", {"rope_parameters": [1]}, ["rope_parameters must be a mapping"]),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ["rope_scaling", "'dyn"]),
        (
            "llama",
            {"rope_parameters": {"rope_type": "yarn"}},
            ["rope_parameters.rope_type", "yarn"],
        ),
        ("llama", {"rope_parameters": {"rope_theta": -1}}, ["rope_parameters.rope_theta is -1"]),
        ("llama", {"rope_parameters": {"mrope_section": [2]}}, ["rope_parameters.mrope_section"]),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, ["factor is missing"]),
        ("linear", {"partial_rotary_factor": 0.5}, ["partial_rotary_factor is 0.5", "family"]),
        ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 0}, ["interval is 0"]),
        (
            "phi3_long",
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 8}},
            ["rope_parameters.long_factor is missing"],
        ),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(
    name: str, changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ModelFileError) as caught:
        spec_from_hf(config_of(name, **changes), PATH)
    assert caught.value.path == PATH
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("factor", [1e308, 2.0, 0.45, 1e-300, -0.5, "x"])
def test_a_factor_that_gives_no_even_dimension_is_refused(factor: object) -> None:
    config = config_of("phi3_short")
    new = {**config["rope_parameters"], "partial_rotary_factor": factor}
    del config["rope_parameters"]
    for change in ({"rope_parameters": new}, {"partial_rotary_factor": factor}):
        with pytest.raises(ModelFileError, match="partial_rotary_factor"):
            spec_from_hf({**config, **change}, PATH)


def test_longrope_takes_its_magnitude_from_the_lengths() -> None:
    spec = spec_from_hf(config_of("phi3_long"), PATH)
    rope = spec.layers[0].rope
    assert rope is not None
    assert rope.dim == 6
    assert rope.magnitude == pytest.approx((1 + 1 / 5) ** 0.5)  # ln 2 / ln 32
    assert (rope.factors, rope.long_factors) == ((1.0, 1.5, 2.0), (1.0, 4.0, 16.0))
    parameters = {**config_of("phi3_long")["rope_parameters"], "attention_factor": 1.25}
    told = spec_from_hf(config_of("phi3_long", rope_parameters=parameters), PATH)
    assert told.layers[0].rope == replace(rope, magnitude=1.25)


def test_longrope_chooses_once_for_an_engine() -> None:
    spec = spec_from_hf(config_of("phi3_long"), PATH)
    assert spec.rope_choice_for(32) == "short"
    assert spec.rope_choice_for(33) == "long"
    ropes = [spec.for_context(length).layers[0].rope for length in (32, 33)]
    assert [rope and rope.factors for rope in ropes] == [(1.0, 1.5, 2.0), (1.0, 4.0, 16.0)]
    assert spec.for_context(32).rope_choice_for(64) is None
    assert spec_from_hf(config_of("llama3"), PATH).rope_choice_for(33) is None


def test_llama3_scales_long_waves_alone() -> None:
    rope = spec_from_hf(config_of("llama3"), PATH).layers[0].rope
    assert rope is not None
    assert rope.factors is not None
    assert rope.factors[0] == 1.0  # 6 tokens long, and 32 / 4 is the limit
    assert 1.0 < rope.factors[1] < 8.0  # 20
    assert rope.factors[2:] == (8.0,) * 6  # from 63 up


CONFIGS = {name: load_case(name).config for name in NAMES}

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.just(10**400)
    | st.integers(-3, 70)
    | st.floats()
    | st.sampled_from(["", "linear", "llama3", "longrope", "silu", "full_attention"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["rope_type", "factor", "rope_theta", "full_attention", "long_factor"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_json_is_read_or_refused(data: st.DataObject) -> None:
    config = copy.deepcopy(CONFIGS[data.draw(st.sampled_from(NAMES))])
    rope = config.get("rope_parameters", {})
    for mapping in (config, rope) if rope else (config,):
        key = data.draw(st.sampled_from(sorted([*mapping, "rope_scaling", "head_dim"])))
        mapping[key] = data.draw(json_values)
    try:
        spec = spec_from_hf(config, PATH)
    except ModelFileError:
        return
    tensor_shapes(spec.for_context(32))
