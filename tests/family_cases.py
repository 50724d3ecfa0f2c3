"""Tiny models of every family: configs, seeded weights, and what transformers computes with them.

A case is kept as ``data/families/NAME.json`` (config.json as transformers saves it, the names and
shapes of the tensors, the prompt) and ``NAME.npy`` (the logits of every token of the prompt). The
weights are made from the tensors' names, so that they need not be kept. `scripts/
make_family_goldens.py` writes the files; `transformers_model` alone needs transformers.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.model.files.quants import GGMLType

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    Array = npt.NDArray[np.float32]

FOLDER = Path(__file__).parent / "data" / "families"
NAMES = sorted(path.stem for path in FOLDER.glob("*.npy"))

VOCAB_SIZE = 96
PROMPT_LENGTH = 48
_COMMON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-3,  # large, so that it counts
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "partial_rotary_factor": 0.375,
    "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [1.0, 4.0, 16.0],
}
_PHI3 = {
    **_COMMON,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,  # its config believes in hidden_size / num_attention_heads alone
    "num_key_value_heads": 1,
    "sliding_window": 24,
    "rope_parameters": _LONGROPE,
    "original_max_position_embeddings": 32,
}

SOURCES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**_COMMON, "num_hidden_layers": 2}),
    "llama3": (
        "Llama",
        {
            **_COMMON,
            "num_hidden_layers": 2,
            "tie_word_embeddings": True,
            # wavelengths from 6 to 2000: all three bands of the scaling
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10_000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "linear": (
        "Llama",
        {
            **_COMMON,
            "num_hidden_layers": 2,
            "num_key_value_heads": 4,
            "head_dim": 8,  # the one case that the cpu backend refuses
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
        },
    ),
    "mistral": ("Mistral", {**_COMMON, "num_hidden_layers": 3, "sliding_window": 11}),
    "qwen2": (
        "Qwen2",
        {
            **_COMMON,
            "num_hidden_layers": 3,
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 1,
        },
    ),
    "qwen3": ("Qwen3", {**_COMMON, "num_hidden_layers": 2}),
    "gemma3": (
        "Gemma3Text",
        {
            **_COMMON,
            "num_hidden_layers": 7,  # the sixth is global
            "num_key_value_heads": 1,
            "query_pre_attn_scalar": 20,
            "sliding_window": 8,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    "gemma3_local": (  # fewer layers than the pattern: none is global
        "Gemma3Text",
        {
            **_COMMON,
            "num_hidden_layers": 2,
            "query_pre_attn_scalar": 16,
            "sliding_window": 16,
        },
    ),
    "phi3_short": ("Phi3", _PHI3),
    "phi3_long": ("Phi3", _PHI3),
    "smollm3": ("SmolLM3", {**_COMMON, "num_hidden_layers": 5, "tie_word_embeddings": True}),
    "gpt2": (
        "GPT2",
        {
            "vocab_size": VOCAB_SIZE,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 2,
            "n_positions": 64,
            "layer_norm_epsilon": 1e-3,
            "bos_token_id": None,
            "eos_token_id": None,
        },
    ),
}
"""By case: the class of the config, without ``Config``, and its arguments."""


@dataclass(frozen=True, slots=True)
class ArrayTensor:
    """An array that acts as a file's tensor."""

    name: str
    values: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def num_elements(self) -> int:
        return self.values.size

    @property
    def type(self) -> GGMLType:
        return GGMLType.F32

    @property
    def num_bytes(self) -> int:
        return self.values.nbytes

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        return self.values.reshape(-1).view(np.uint8)

    def dequantize(self) -> Array:
        return self.values.copy()


@dataclass(frozen=True, slots=True)
class Case:
    """One tiny model and its golden logits."""

    name: str
    config: dict[str, Any]
    """config.json, as transformers saves it."""
    shapes: dict[str, tuple[int, ...]]
    """Of the tensors, as transformers saves them."""
    tokens: list[int]
    logits: Array  # [len(tokens), VOCAB_SIZE]

    @property
    def weights(self) -> dict[str, Array]:
        """The tensors, by transformers' names."""
        return make_weights(self.name, self.shapes)

    @property
    def tensors(self) -> dict[str, ArrayTensor]:
        """The tensors, as a folder has them."""
        return {name: ArrayTensor(name, values) for name, values in self.weights.items()}


def load_case(name: str) -> Case:
    """Read a golden."""
    kept = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    shapes = {key: tuple(map(int, text.split("x"))) for key, text in kept["shapes"].items()}
    return Case(name, kept["config"], shapes, kept["tokens"], np.load(FOLDER / f"{name}.npy"))


def save_case(case: Case) -> None:
    """Write a golden."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    shapes = {key: "x".join(map(str, shape)) for key, shape in case.shapes.items()}
    text = json.dumps({"tokens": case.tokens, "shapes": shapes, "config": case.config}, indent=1)
    (FOLDER / f"{case.name}.json").write_text(text + "\n", "utf-8")
    np.save(FOLDER / f"{case.name}.npy", case.logits)


def prompt_for(name: str) -> list[int]:
    """Return the case's prompt; LongRoPE's short factors are for the first 32 tokens alone."""
    length = 32 if name == "phi3_short" else PROMPT_LENGTH
    tokens: list[int] = _random(name).randint(0, VOCAB_SIZE, length).tolist()
    return tokens


def make_weights(case: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Return seeded weights under which a greedy choice is clear and every part counts.

    Uniform numbers of NumPy's frozen generator: the same bits everywhere.
    """
    is_gpt2 = any(name.startswith("transformer.") for name in shapes)
    is_gemma = case.startswith("gemma")
    weights = {}
    for name, shape in shapes.items():
        uniform = _random(f"{case}/{name}").random_sample(shape) * 2 - 1
        if len(shape) == 1:
            mean = 1.0 if name.endswith("weight") else 0.0
            if is_gemma:  # stored less one; and what is added must drown the scaled embedding
                mean = 3.0 if ".post_" in name else 0.0
            values = mean + 0.3 * uniform
        else:
            is_table = any(part in name for part in ("embed", "wte", "lm_head"))
            gain = 3.0 if is_table else 1.0 if "wpe" in name else 1.5
            fan_in = shape[0] if is_gpt2 and ".h." in name else shape[1]
            values = gain * (3 / fan_in) ** 0.5 * uniform
        weights[name] = values.astype(np.float32)
    return weights


def _random(key: str) -> np.random.RandomState:
    return np.random.RandomState(zlib.crc32(key.encode()))


def transformers_case(name: str, folder: Path) -> Case:
    """Build a case in transformers, saved into ``folder`` as a Hugging Face folder."""
    import torch
    import transformers
    from safetensors.numpy import load_file, save_file

    kind, arguments = SOURCES[name]
    config = getattr(transformers, f"{kind}Config")(**arguments)
    suffix = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    model_class = getattr(transformers, kind.removesuffix("Text") + suffix)
    model_class(config).save_pretrained(folder)
    shapes = {key: array.shape for key, array in load_file(folder / "model.safetensors").items()}
    weights = make_weights(name, shapes)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model = model_class.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokens = prompt_for(name)
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0].numpy()
    saved = json.loads((folder / "config.json").read_text("utf-8"))
    del saved["transformers_version"]
    return Case(name, saved, shapes, tokens, logits)
