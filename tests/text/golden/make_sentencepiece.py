"""Writes sentencepiece.json: a small SentencePiece BPE model trained as Llama's was, and its token ids for the corpus.

python make_sentencepiece.py      # needs: pip install sentencepiece
"""

from __future__ import annotations

import contextlib
import io
import json
import pydoc
from pathlib import Path

import sentencepiece
from corpus import TEXTS


def manual(name: str) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        pydoc.help(name)
    return text.getvalue()


def main() -> None:
    lines = [line for name in ("json", "str", "argparse", "subprocess") for line in manual(name).splitlines() if line.strip()]
    lines += [text for text in TEXTS if text.strip()][:20]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=1500,
        byte_fallback=True,
        character_coverage=0.99,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        user_defined_symbols=["<sep>"],
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    size = processor.get_piece_size()
    kinds = ((processor.is_unknown, 2), (processor.is_control, 3), (processor.is_unused, 5), (processor.is_byte, 6))
    result = {
        "texts": TEXTS,
        "golden": [processor.encode(text) for text in TEXTS],
        "tokens": [processor.id_to_piece(i) for i in range(size)],
        "scores": [processor.get_score(i) for i in range(size)],
        "token_type": [
            next((kind for test, kind in kinds if test(i)), 4 if processor.id_to_piece(i) == "<sep>" else 1)
            for i in range(size)
        ],
    }
    Path(__file__).with_name("sentencepiece.json").write_text(
        json.dumps(result, ensure_ascii=True, separators=(",", ":")) + "\n"
    )


main()
