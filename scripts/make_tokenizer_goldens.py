"""Makes the small vocabularies and expected ids under tests/data/tokenizers, at authoring time.

The vocabularies are trained here, on this repository's own words, so that no model's licence
covers them. The expected ids come from the libraries that define them: `tokenizers`, told how to
cut words by the real tokenizer.json files of Llama 3 and Qwen 3, and `sentencepiece`.

    pip install tokenizers sentencepiece && scripts/fetch_tokenizers
    python scripts/make_tokenizer_goldens.py ~/.cache/octavo/test-tokenizers
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data" / "tokenizers"
SAMPLES = [
    "Don't say it's done; they'll, we're, I'm, you've, he'd. DON'T SAY IT'S DONE, WE'LL SEE.",
    "In 1999, 12345 of 67890 pages; 3.14159, 0x1F, 1,000,000 and 42 of 365.",
    "L'été, la forêt et le garçon; größer, Straße, Übermut; tiếng Việt; español, mañana.",
    "漢字とかな、日本語の文。中文句子。한국어 문장. Ελληνικά. Русский язык. עברית. العربية.",
    "def f(x: int) -> int:\n    if x > 0:\n        return x ** 2\n\n\treturn -x  # done\r\n",
    "😀 👍🏽 👩‍👩‍👧 — “quoted” … ½ ² Ⅷ",
]
TEXTS = [
    "", " ", "  ", "a", " a", "a ", "  a  b   c    d ", "Hello, world!", "hello hello",
    "\n", "\n\n", "\n\n\nnew\r\n\r\nlines\t\ttabs \n x", "x\n    y\n        z", " \n \n",
    "x  \n\n  y",
    "Don't DON'T we'll WE'LL it's IT'S I'm I'M they've you'd", "'s 'll 'LL ''", "rock'n'roll",
    "1 12 123 1234 12345 1234567890", "3.14159 1,000,000 0x1F 1e-10", "a1b22c333", "Ⅷ ½ ² ٣٤٥",
    "L'été à la forêt", "e\u0301te\u0301 e\u0301", "größer als Straße", "tiếng Việt Nam",
    "漢字とかな", "日本語の文。中文句子。", "한국어 문장", "Ελληνικά Русский", "שלום العربية",
    "😀👍🏽", "👩‍👩‍👧 family", "\U0001f1eb\U0001f1f7", "a\u00a0b\u2003c\u3000d", "\u200b\ufeff",
    "def f(x: int) -> int:\n    return x ** 2 + 1  # comment\n", "if (a == b && c != d) { e[0]; }",
    "----====____****////", "...,,,;;;:::", "[INST] hi [/INST]", "</s> <s> <unk>", "<0x41>",
    "<|im_end|>", "<|eot_id|>", "zyxwzyxw zyxwzyxw", " zyxwzyxw", "the capital of France is",
    "\x00\x01\x7f", "tab\tand\vvertical\fform", "ﬁ ligature ǆ", "UPPER lower MiXed CamelCase",
    "https://example.org/a?b=c&d=%20", "The scheduler knows no tensors.", "blocks  blocks   blocks",
]  # fmt: skip
CONTROL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>"]


def corpus() -> list[str]:
    files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return lines + SAMPLES * 20


def write(name: str, value: object) -> None:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    (DATA / name).write_text(text.replace("],[", "],\n["), encoding="utf-8")


def byte_level(files: Path) -> None:
    """One vocabulary with digits of up to three and a word that no merge makes, cut five ways."""
    cuts: dict[str, dict[str, Any]] = {}
    for name, package in (("llama-bpe", "llama3"), ("qwen2", "qwen3")):
        file = json.loads((files / package / "tokenizer.json").read_text(encoding="utf-8"))
        cuts[name] = {k: file[k] for k in ("normalizer", "pre_tokenizer")}
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _pre_tokenizer(cuts["llama-bpe"])
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].__getitem__), "zyxwzyxw"]
    merges = [" ".join(merge) for merge in model["merges"]]
    space = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    cases: dict[str, list[list[int]]] = {}
    for name in ("gpt-2", "smollm", "llama-bpe", "smaug-bpe", "qwen2"):
        oracle = tokenizers.Tokenizer(
            models.BPE(
                {t: i for i, t in enumerate(tokens)},
                [tuple(m.split(" ")) for m in merges],
                ignore_merges=name == "llama-bpe",
            )
        )
        if name in ("gpt-2", "smollm"):
            parts = [digits, space] if name == "smollm" else [space]
            oracle.pre_tokenizer = pre_tokenizers.Sequence(parts)
        else:
            oracle.pre_tokenizer = _pre_tokenizer(cuts["qwen2" if name == "qwen2" else "llama-bpe"])
        if name == "qwen2":
            assert cuts[name]["normalizer"] == {"type": "NFC"}
            oracle.normalizer = normalizers.NFC()
        cases[name] = [oracle.encode(text).ids for text in TEXTS]
    write(
        "byte_level.json",
        {"tokens": tokens, "merges": merges, "control": CONTROL, "texts": TEXTS, "ids": cases},
    )


def _pre_tokenizer(parts: dict[str, Any]) -> pre_tokenizers.PreTokenizer:
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    text = json.dumps({"version": "1.0", "added_tokens": [], "model": empty, **parts})
    return tokenizers.Tokenizer.from_str(text).pre_tokenizer


def sentencepiece_models() -> None:
    """One vocabulary as Llama's, with a space before each text, and one as Gemma's, without."""
    for name, prefix, options in (
        ("spm_prefix", True, {}),
        (
            "spm_plain",
            False,
            {
                "user_defined_symbols": ["\u2581" * n for n in (2, 3, 4, 8)] + ["<h1>", "</h1>"],
                "control_symbols": ["<start_of_turn>", "<end_of_turn>"],
            },
        ),
    ):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus()),
            model_prefix=str(DATA / name),
            model_type="bpe",
            vocab_size=1000,
            byte_fallback=True,
            character_coverage=0.995,
            normalization_rule_name="identity",
            add_dummy_prefix=prefix,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            num_threads=1,
            minloglevel=2,
            **options,
        )
        (DATA / f"{name}.vocab").unlink()
        literals = options.get("user_defined_symbols", [])
        oracle = sentencepiece.SentencePieceProcessor(model_file=str(DATA / f"{name}.model"))
        pieces = [
            [oracle.id_to_piece(i), oracle.get_score(i), _type(oracle, i, literals)]
            for i in range(oracle.get_piece_size())
        ]
        write(
            f"{name}.json",
            {
                "pieces": pieces,
                "texts": TEXTS,
                "ids": [oracle.encode(text) for text in TEXTS],
                "decoded": [oracle.decode(oracle.encode(text)) for text in TEXTS],
            },
        )


def _type(oracle: sentencepiece.SentencePieceProcessor, i: int, user_defined: list[str]) -> int:
    kinds = ((oracle.is_unknown, 2), (oracle.is_control, 3), (oracle.is_byte, 6))
    for question, number in kinds:
        if question(i):
            return number
    return 4 if oracle.id_to_piece(i) in user_defined else 1


if __name__ == "__main__":
    DATA.mkdir(parents=True, exist_ok=True)
    byte_level(Path(sys.argv[1]))
    sentencepiece_models()
