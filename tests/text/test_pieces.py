from __future__ import annotations

from tokenizers import pre_tokenizers

from forno.text.pieces import _byte_level_pieces, _sentencepiece_piece, read_pieces
from tests.text import text_fixtures as fixtures


def test_every_byte_has_its_character():
    for byte in range(256):
        (piece,) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(chr(byte))
        assert _byte_level_pieces([piece[0]]) == [chr(byte).encode()]


def test_text_outside_the_byte_alphabet_stands_for_itself():
    strange = ["two words", "\u00ad", "\x80", "한", "\u0144"]
    texts = ["", *strange, "", "Ġa", "b"]
    assert _byte_level_pieces(texts) == [b"", *[text.encode() for text in strange], b"", b" a", b"b"]
    assert _byte_level_pieces([]) == []


def test_sentencepiece_bytes_and_spaces():
    assert _sentencepiece_piece("<0xE2>") == b"\xe2"
    assert _sentencepiece_piece("<0xZZ>") == b"<0xZZ>"
    assert _sentencepiece_piece("▁▁a") == b"  a"


def test_special_tokens_are_invisible_and_user_defined_ones_are_not():
    tokenizer = fixtures.sentencepiece()
    separator = tokenizer.token_to_id("<sep>")
    assert separator is not None
    assert tokenizer.pieces.visible[separator] == b"<sep>"
    assert tokenizer.pieces.visible[1] == b""
    assert tokenizer.pieces.raw[1] == b"<s>"
    assert tokenizer.pieces.special == {0, 1, 2}


def test_gaps_in_the_ids_are_empty():
    backend = fixtures.trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    pieces = read_pieces(backend)
    assert len(pieces.raw) == backend.get_vocab_size()
    assert all(pieces.raw)
    assert not pieces.strips_leading_space
