"""Models of a real one's shape with random weights, for speed: what they say is noise, what they cost is not.

    python -m benchmarks.synthetic [--format Q4_0] [--shape qwen2.5-0.5b] [--seed 0] [--dir DIR]      prints the path

``--format`` is a type of llama.cpp's (``BF16``, ``Q8_0``, ``Q4_0``, ``Q4_K_M``, ...), whose own tool quantizes, so that odd
widths get the mix that real files have; ``hf``, a Hugging Face directory in bf16; or ``w8a8``, one in compressed-tensors' int8.
``--like MODEL`` writes ``hf`` and ``w8a8`` of a real model's dequantized weights instead. Files are made once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain, count, islice, product
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

from benchmarks.measure import progress
from benchmarks.models import MODELS
from benchmarks.peers import llamacpp
from benchmarks.writers import Source, complete, write_directory, write_gguf
from forno.loader.dequant import dequantize
from forno.loader.open import open_checkpoint
from forno.loader.sources import resolve
from forno.models import build_program
from forno.text.pretokenize import family

SHAPES = ("qwen2.5-0.5b",)
"""Names in ``MODELS`` that can be written as GGUF too."""
DIRECTORIES = ("hf", "w8a8")
"""Formats that are directories."""
DEFAULT_DIR = llamacpp.DEFAULT_DIR / "synthetic"

WORDS = 8192
"""Tokens of the vocabulary that are learnt from text; the rest are numbers, which the pre-tokenizer never joins."""
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPARE = 290
"""Ids at the end of the vocabulary without a token of their own, as in Qwen's."""
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5


def synthetic(config: dict[str, Any], seed: int) -> Source:
    """Random weights of ``config``'s architecture: each depends on the seed and its name only."""
    config = config | {"bos_token_id": config["vocab_size"] - SPARE - 3, "eos_token_id": config["vocab_size"] - SPARE - 1}
    shapes = {name: spec.shape for name, spec in build_program(config).weights.items()}

    def weight(name: str) -> np.ndarray:
        return random_weight(name, shapes[name], seed, layers=config["num_hidden_layers"])

    return Source(config, shapes, weight, tokenizer_metadata(config["vocab_size"]))


def random_weight(name: str, shape: tuple[int, ...], seed: int, layers: int) -> np.ndarray:
    """float32: norms near 1; matrices scaled by fan-in so that activations stay near 1, those that write to the residual
    stream by depth too; embeddings small enough that logits spread over a few units."""
    values = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape, np.float32)
    if "norm" in name:
        return 1 + np.float32(0.1) * values
    if len(shape) == 1:
        return np.float32(0.1) * values
    scale = shape[1] ** -0.5
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        scale *= (2 * layers) ** -0.5
    if "embed" in name or "lm_head" in name:
        scale *= 3
    return np.float32(scale) * values


def like(model: str) -> Source:
    """A real model's weights, dequantized."""
    checkpoint = open_checkpoint(resolve(model))
    if checkpoint.tokenizer.gguf is None:
        raise SystemExit("--like takes a GGUF file")
    shapes = {name: spec.shape for name, spec in build_program(checkpoint.config).weights.items()}
    tokenizer = dict(checkpoint.tokenizer.gguf)
    return Source(checkpoint.config, shapes, lambda name: dequantize(checkpoint.tensors[name]), tokenizer)


# --- the tokenizer ---


@cache
def tokenizer_metadata(vocab_size: int) -> dict[str, Any]:
    """A byte-level BPE that cuts as Qwen2's does: words learnt from Python's help topics, then numbers up to the size."""
    tokens, merges = _learnt()
    numbers = vocab_size - SPARE - len(SPECIAL) - len(tokens)
    assert numbers >= 0, "the vocabulary is too small for the words"
    for number in islice(_numbers(), numbers):
        tokens.append(number)
        merges.append(f"{number[:-1]} {number[-1]}")
    types = [_NORMAL] * len(tokens) + [_CONTROL] * len(SPECIAL) + [_UNUSED] * SPARE
    end = len(tokens)
    tokens += [*SPECIAL, *(f"[PAD{end + len(SPECIAL) + i}]" for i in range(SPARE))]
    prefix = "tokenizer.ggml."
    return {
        prefix + "model": "gpt2",
        prefix + "pre": "qwen2",
        prefix + "tokens": tokens,
        prefix + "token_type": types,
        prefix + "merges": merges,
        prefix + "bos_token_id": end,
        prefix + "padding_token_id": end,
        prefix + "eos_token_id": end + 2,
        prefix + "add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _learnt() -> tuple[list[str], list[str]]:
    """Tokens in the order of their ids, and merges in the order of their rank."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = family("qwen2").pre_tokenizer()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=WORDS, initial_alphabet=sorted(alphabet), show_progress=False)
    tokenizer.train_from_iterator([topics[name] for name in sorted(topics)], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens: list[str] = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return tokens, merges


def _numbers() -> Iterator[str]:
    """Every string of two digits, of three, and so on: each is the one before with a digit appended."""
    return chain.from_iterable(("".join(digits) for digits in product("0123456789", repeat=n)) for n in count(2))


# --- files ---


def make(form: str, source: Source, name: str, directory: Path = DEFAULT_DIR, peers: Path = llamacpp.DEFAULT_DIR) -> Path:
    """The path of ``source`` in format ``form`` below ``directory``; written if it is not there. Raises ``PeerError``."""
    suffix = "" if form in DIRECTORIES else ".gguf"
    path = directory / f"{name}-{form}{suffix}"
    if path.exists():
        return path
    progress(f"writing {path}")
    if form in DIRECTORIES:
        return write_directory(path, source, w8a8=form == "w8a8")
    if form == "BF16":
        return write_gguf(path, source)
    exact = make("BF16", source, name, directory, peers)
    with complete(path) as part:
        quantize(llamacpp.set_up(peers), exact, part, form)
    return path


def quantize(peer: llamacpp.LlamaCpp, model: Path, target: Path, form: str) -> None:
    """``model`` with llama.cpp's mix of types ``form``. Raises ``PeerError``."""
    command = [peer.tool("llama-quantize"), "--allow-requantize", str(model), str(target), form]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        raise llamacpp.PeerError(f"{' '.join(command)} failed with status {done.returncode}:\n{done.stdout[-2000:]}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write a model of a real one's shape with random weights.")
    parser.add_argument("--format", default="BF16", help="a type of llama.cpp's, or one of: " + ", ".join(DIRECTORIES))
    parser.add_argument("--shape", default="qwen2.5-0.5b", choices=SHAPES)
    parser.add_argument("--like", help="write the weights of this GGUF model instead; for: " + ", ".join(DIRECTORIES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=DEFAULT_DIR)
    options = parser.parse_args(arguments)
    if options.like and options.format not in DIRECTORIES:
        parser.error(f"--like goes with --format {' or '.join(DIRECTORIES)}")
    if options.like:
        print(make(options.format, like(options.like), Path(options.like).stem, options.dir))
    else:
        print(
            make(options.format, synthetic(MODELS[options.shape], options.seed), f"{options.shape}-{options.seed}", options.dir)
        )


if __name__ == "__main__":
    main()
