"""Writes smollm2.json: token ids by llama.cpp (the ``xllamacpp`` wheel) for the corpus, and as much of SmolLM2's vocabulary
as can matter for it, so that the test needs no model file.

    python make_smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf      # needs: pip install xllamacpp gguf
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path

import gguf
import xllamacpp
from corpus import TEXTS

_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _VISIBLE]
_CHARACTER = {**{b: chr(b) for b in _VISIBLE}, **{b: chr(0x100 + i) for i, b in enumerate(_OTHERS)}}


def tokenize(server: xllamacpp.Server, text: str) -> list[int]:
    body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
    request = urllib.request.Request(server.listening_address + "/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)["tokens"]


def main(path: str) -> None:
    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.n_ctx, parameters.warmup = path, 256, False
    server = xllamacpp.Server(parameters)
    golden = [tokenize(server, text) for text in TEXTS]

    fields = gguf.GGUFReader(path).fields
    tokens, merges, types = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "merges", "token_type"))
    written = "".join(_CHARACTER[byte] for byte in "\0".join(TEXTS).encode())
    # Two neighbours that are never side by side in the corpus are never merged: leaving their merge out changes nothing.
    merges = [merge for merge in merges if merge.replace(" ", "", 1) in written]
    kept = {side for merge in merges for side in (*merge.split(" "), merge.replace(" ", "", 1))} | set(_CHARACTER.values())
    ids = [i for i, token in enumerate(tokens) if token in kept or types[i] != 1]
    result = {
        "texts": TEXTS,
        "golden": golden,
        "source_ids": ids,
        "tokens": [tokens[i] for i in ids],
        "token_type": [int(types[i]) for i in ids],
        "merges": merges,
    }
    Path(__file__).with_name("smollm2.json").write_text(json.dumps(result, ensure_ascii=True, separators=(",", ":")) + "\n")
    os._exit(0)  # the server has no way to stop


main(sys.argv[1])
