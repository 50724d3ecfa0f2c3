"""The table of families is sound, and docs/models.md tells it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from family_cases import NAMES
from octavo.model.families import BY_ARCHITECTURE, BY_HF_CLASS, FAMILIES, Family

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_every_class_has_one_row() -> None:
    assert len(BY_HF_CLASS) == len(FAMILIES)


def test_a_llama_of_gguf_is_not_a_mistral() -> None:
    assert BY_ARCHITECTURE["llama"].hf_class == "LlamaForCausalLM"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.hf_class)
def test_families_of_one_architecture_pack_tensors_alike(family: Family) -> None:
    """`hf_weights` asks for the family by the spec's architecture alone."""
    first = BY_ARCHITECTURE[family.architecture]
    for field in ("traits", "fused", "hf_names", "hf_norm_plus_one", "hf_transposed"):
        assert getattr(first, field) == getattr(family, field)


def test_the_page_has_every_family_and_every_case() -> None:
    rows = re.findall(r"^\| .* \| `(\w+)` \| `(\w+)` \| .* \| (.*) \|$", PAGE.read_text(), re.M)
    assert [row[:2] for row in rows] == [(f.architecture, f.hf_class) for f in FAMILIES]
    assert sorted(re.findall(r"`(\w+)`", " ".join(row[2] for row in rows))) == NAMES
