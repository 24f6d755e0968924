from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from forno.text.detokenize import IncrementalDetokenizer
from tests.text import text_fixtures as fixtures

TOKENIZERS = {"byte-level": fixtures.smollm2, "sentencepiece": fixtures.sentencepiece}


@st.composite
def streams(draw):
    """A tokenizer, ids (any, or those of real text, so that characters span tokens) and a way to cut them."""
    tokenizer = TOKENIZERS[draw(st.sampled_from(sorted(TOKENIZERS)))]()
    text = st.text(st.characters(codec="utf-8"), max_size=12).map(lambda text: tokenizer.encode(text, False))
    anything = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12)
    ids = [i for part in draw(st.lists(st.one_of(text, anything, st.just([1, 2])), max_size=4)) for i in part]
    cuts = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    pieces = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    return tokenizer, ids, pieces


@settings(max_examples=400)
@given(streams(), st.booleans())
def test_pieces_joined_equal_decoding_the_whole(stream, skip):
    tokenizer, ids, pieces = stream
    detokenizer = IncrementalDetokenizer(tokenizer, (), skip)
    text = "".join(detokenizer.add(piece) for piece in pieces) + detokenizer.flush()
    assert text == tokenizer.decode(ids, skip)


@settings(max_examples=400)
@given(streams(), st.booleans(), st.data())
def test_prompt_and_output_joined_equal_decoding_both(stream, skip, data):
    """What the prompt shows without its unfinished last character, and then the output, is the text of both."""
    tokenizer, ids, _ = stream
    cut = data.draw(st.integers(0, len(ids)))
    prompt = IncrementalDetokenizer(tokenizer, (), skip)
    shown = prompt.add(ids[:cut])
    output = IncrementalDetokenizer(tokenizer, ids[:cut], skip)
    rest = "".join(output.add([index]) for index in ids[cut:]) + output.flush()
    assert shown + rest == tokenizer.decode(ids, skip)


def test_a_character_split_over_tokens_waits_until_it_is_whole():
    tokenizer = fixtures.smollm2()
    ids = [next(i for i, raw in enumerate(tokenizer.pieces.raw) if raw == bytes([byte])) for byte in "😀".encode()]
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert [detokenizer.add([index]) for index in ids] == ["", "", "", "😀"]
    assert detokenizer.add(ids[:2]) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_sentencepiece_drops_the_leading_space_only_at_the_start_of_everything():
    tokenizer = fixtures.sentencepiece()
    ids = tokenizer.encode("the", add_special_tokens=False)
    assert IncrementalDetokenizer(tokenizer).add(ids) == "the"
    assert IncrementalDetokenizer(tokenizer, [1]).add(ids) == "the"  # after BOS alone
    assert IncrementalDetokenizer(tokenizer, ids).add(ids) == " the"
    assert IncrementalDetokenizer(tokenizer, [1], skip_special_tokens=False).add(ids) == " the"


def test_ids_of_a_padded_head_add_nothing():
    tokenizer = fixtures.smollm2()
    detokenizer = IncrementalDetokenizer(tokenizer, [tokenizer.vocab_size + 3])
    ids = tokenizer.encode("ab", add_special_tokens=False)
    assert detokenizer.add([tokenizer.vocab_size, *ids]) == "ab"
