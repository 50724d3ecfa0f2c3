"""A tokenizer of plain bytes for models in memory, as `GrammarCompiler` needs one."""

from __future__ import annotations


class ByteTokenizer:
    """Ids 3 to 258 are the bytes, 0 is the end, what follows are a few longer pieces."""

    PIECES = (b'{"', b'":', b"true", b"yes", b"ab", b'"}', b"  ", b"12", b", ", b'"a')

    def __init__(self, eos_ids: frozenset[int] = frozenset({0})) -> None:
        tokens = [b"<end>", b"<s>", b"<unk>", *(bytes([i]) for i in range(256)), *self.PIECES]
        self.tokens = tokens
        self.vocab_size = len(tokens)
        self.special_ids = frozenset({0, 1, 2})
        self.eos_ids = eos_ids

    def token_bytes(self, token_id: int) -> bytes:
        return self.tokens[token_id]

    def encode(self, text: str, *, continuing: bool = False) -> list[int]:
        return [3 + byte for byte in text.encode()]
