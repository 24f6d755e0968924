"""Small tokenizers for the tests of ``forno.text``: from golden files, and trained on the spot."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from forno.loader.checkpoint import Checkpoint, TokenizerSource
from forno.text.tokenizer import Tokenizer, load_tokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = (
    "The quick brown fox jumps over the lazy dog. It's 12345 dogs' don't we'll \n\n def f(x):\n    return x ** 2\n"
    "안녕하세요 한국어 мир привет 你好世界 naïve café 😀😃 HelloWorld camelCase HTTPServer a/b //comment\r\n\tTab's 3.14 ١٢٣ "
)


@functools.cache
def golden(name: str) -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "golden" / f"{name}.json").read_text())


def from_gguf(metadata: dict[str, Any], **checkpoint: Any) -> Tokenizer:
    full = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    return load_tokenizer(Checkpoint("test", {}, {}, TokenizerSource(gguf=full), **checkpoint))


def from_json(path: Path, backend: tokenizers.Tokenizer, config: dict[str, Any] | None = None, **checkpoint: Any) -> Tokenizer:
    file = path / "tokenizer.json"
    file.write_text(backend.to_str())
    source = TokenizerSource(json_path=str(file), config=config or {})
    return load_tokenizer(Checkpoint("test", checkpoint.pop("config_json", {}), {}, source, **checkpoint))


def smollm2_metadata() -> dict[str, Any]:
    data = golden("smollm2")
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "padding_token_id": 2}
    switches = {"add_bos_token": False, "add_space_prefix": False}
    return {
        "model": "gpt2",
        "pre": "smollm",
        **{key: data[key] for key in ("tokens", "token_type", "merges")},
        **ids,
        **switches,
    }


def sentencepiece_metadata() -> dict[str, Any]:
    data = golden("sentencepiece")
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return {"model": "llama", **{key: data[key] for key in ("tokens", "scores", "token_type")}, **ids}


@functools.cache
def smollm2() -> Tokenizer:
    """SmolLM2's vocabulary as far as the golden corpus needs it; all bytes are in it, so it encodes any text."""
    return from_gguf(smollm2_metadata())


@functools.cache
def sentencepiece() -> Tokenizer:
    return from_gguf(sentencepiece_metadata())


def trained(pre_tokenizer: pre_tokenizers.PreTokenizer, ignore_merges: bool = False) -> tokenizers.Tokenizer:
    """A byte-level BPE of 700 tokens, the special ones first."""
    backend = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([WORDS, WORDS.upper(), WORDS.title()] * 3, trainer)
    return backend


def gguf_metadata(backend: tokenizers.Tokenizer, pre: str) -> dict[str, Any]:
    """``backend`` as a GGUF file would hold it."""
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    types = [3 if token in SPECIAL else 1 for token in tokens]
    return {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": merges}
