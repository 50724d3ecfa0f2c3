"""From the RoPE part of a config.json to `RopeSpec`s, in the old style and the new.

    old    rope_theta, rope_scaling {type or rope_type, ...}, partial_rotary_factor,
           rope_local_base_freq (of windowed layers)
    new    rope_parameters {rope_theta, rope_type, partial_rotary_factor, ...}, or one such for
           each of full_attention and sliding_attention

A scaling of another type, or with a parameter that is not known, is refused.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.model.spec import RopeSpec

if TYPE_CHECKING:
    from octavo.model.families import Family
    from octavo.model.fields import Fields


def ropes_from_hf(
    config: Fields, family: Family, head_dim: int, context_length: int
) -> tuple[RopeSpec, RopeSpec]:
    """Return the ropes of the layers that see everything, and of the windowed ones."""
    old, new = config.child("rope_scaling"), config.child("rope_parameters")
    nested = new.has("full_attention") or new.has("sliding_attention")
    theta = config.positive("rope_theta", family.hf_theta)
    if nested:
        parameters = new.child("full_attention")
    else:
        parameters = old if config.has("rope_scaling") else new
    global_rope = _rope(parameters, config, theta, head_dim, context_length)
    if family.local_theta is None and not nested:
        return global_rope, global_rope
    theta = config.positive("rope_local_base_freq", family.local_theta or theta)
    local = new.child("sliding_attention")  # empty in the old style: never scaled
    return global_rope, _rope(local, config, theta, head_dim, context_length)


def _rope(
    parameters: Fields, config: Fields, theta: float, head_dim: int, context_length: int
) -> RopeSpec:
    """Read one rope; ``theta`` is its base where the parameters have none."""
    partial = parameters.positive(
        "partial_rotary_factor", config.positive("partial_rotary_factor", 1.0)
    )
    dim = int(head_dim * partial)
    if not 2 <= dim <= head_dim or dim % 2:
        raise parameters.fault(
            "partial_rotary_factor",
            f"is {partial}, which rotates {dim} of a head's {head_dim} dimensions; "
            "they must be even in number",
        )
    rope = RopeSpec(theta=parameters.positive("rope_theta", theta), dim=dim, layout="half")
    # Phi-3 has it outside, and there it is the one that counts.
    original = parameters.integer("original_max_position_embeddings", context_length)
    original = config.integer("original_max_position_embeddings", original)
    kind = parameters.string("rope_type", parameters.string("type", "default"))
    if kind == "linear":
        rope = replace(rope, factors=(parameters.positive("factor"),) * (dim // 2))
    elif kind == "llama3":
        rope = replace(rope, factors=_llama3_factors(parameters, rope, original))
    elif kind in ("longrope", "su"):
        factor = parameters.positive("factor", context_length / original)
        rope = replace(
            rope,
            factors=parameters.positives("short_factor", dim // 2),
            long_factors=parameters.positives("long_factor", dim // 2),
            original_context=original,
            magnitude=parameters.positive("attention_factor", longrope_magnitude(factor, original)),
        )
    elif kind != "default":
        raise parameters.fault(
            "rope_type", f"is {kind!r}: only default, linear, llama3 and longrope are supported"
        )
    parameters.refuse_unread()
    return rope


def longrope_magnitude(factor: float, original_context: int) -> float:
    """sqrt(1 + ln(factor) / ln(original context)), at least 1 (Ding et al., LongRoPE, 2024)."""
    if factor <= 1 or original_context <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original_context))


def _llama3_factors(parameters: Fields, rope: RopeSpec, original: int) -> tuple[float, ...]:
    """Return what each frequency is divided by (Llama 3.1, 2024).

    With t = original context / wavelength, the turns of a pair over the original context: 1 where
    t > high_freq_factor, ``factor`` where t < low_freq_factor, and between them the inverse of
    (1 - s) / factor + s, where s = (t - low) / (high - low).
    """
    factor = parameters.positive("factor")
    low, high = parameters.positive("low_freq_factor"), parameters.positive("high_freq_factor")
    if low >= high:
        raise parameters.fault("low_freq_factor", f"is {low}; it must be below {high}")
    factors = []
    for pair in range(rope.dim // 2):
        wavelength = 2 * math.pi * rope.theta ** (2 * pair / rope.dim)
        share = (original / wavelength - low) / (high - low)
        share = min(1.0, max(0.0, share))
        factors.append(1 / ((1 - share) / factor + share))
    return tuple(factors)
