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
    global_rope = _rope(parameters, config, family, theta, head_dim, context_length)
    if family.local_theta is None and not nested:
        return global_rope, global_rope
    theta = config.positive("rope_local_base_freq", family.local_theta or theta)
    local = new.child("sliding_attention")  # empty in the old style: never scaled
    return global_rope, _rope(local, config, family, theta, head_dim, context_length)


def _rope(
    parameters: Fields,
    config: Fields,
    family: Family,
    theta: float,
    head_dim: int,
    context_length: int,
) -> RopeSpec:
    """Read one rope; ``theta`` is its base where the parameters have none."""
    kind = parameters.string("rope_type", parameters.string("type", "default"))
    dim = _rotated_dim(parameters, config, head_dim, family, kind)
    rope = RopeSpec(theta=parameters.positive("rope_theta", theta), dim=dim, layout="half")
    # Phi-3 has it outside, and there it is the one that counts.
    original = parameters.integer("original_max_position_embeddings", context_length)
    original = config.integer("original_max_position_embeddings", original)
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


def _rotated_dim(
    parameters: Fields, config: Fields, head_dim: int, family: Family, kind: str
) -> int:
    """Return how many dimensions of a head are rotated.

    Most classes of transformers rotate all. Without a scaling they do not look at
    ``partial_rotary_factor``; with one they do, and fail unless it is 1.
    """
    key = "partial_rotary_factor"
    fields = parameters if parameters.has(key) else config
    partial = 1.0
    if family.hf_partial_rope or kind != "default":
        partial = fields.positive(key, 1.0)
    if partial > 1:
        raise fields.fault(key, f"is {partial}; it must be at most 1")
    if partial < 1 and not family.hf_partial_rope:
        raise fields.fault(key, f"is {partial}, which is not supported in this family")
    dim = int(head_dim * partial)
    if dim < 2 or dim % 2:
        raise fields.fault(
            key,
            f"is {partial}, which rotates {dim} of a head's {head_dim} dimensions; "
            "they must be even in number",
        )
    return dim


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
