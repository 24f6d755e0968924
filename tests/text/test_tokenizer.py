from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from forno.errors import CheckpointError, RequestError, UnsupportedError
from forno.loader.checkpoint import Checkpoint, TokenizerSource
from forno.text.pretokenize import FAMILIES
from forno.text.tokenizer import load_tokenizer
from tests.text import text_fixtures as fixtures

GOLDEN = fixtures.golden("smollm2")
PIECES = fixtures.golden("sentencepiece")

# The pre-tokenizers as the models' own tokenizer.json files write them.
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), BYTES])


SOURCES = {
    "gpt-2": (GPT2, False, None),
    "smollm": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]), False, None),
    "llama-bpe": (split(LLAMA3), True, None),
    "qwen2": (split(QWEN2), False, normalizers.NFC()),
    "tekken": (split(TEKKEN), True, None),
}


@pytest.fixture(scope="module")
def pairs():
    """Per family: the source tokenizer, and ours built from the same vocabulary as GGUF metadata."""
    result = {}
    for name, (pre_tokenizer, ignore_merges, normalizer) in SOURCES.items():
        source = fixtures.trained(pre_tokenizer, ignore_merges)
        if normalizer is not None:
            source.normalizer = normalizer
        result[name] = source, fixtures.from_gguf(fixtures.gguf_metadata(source, name))
    return result


@pytest.mark.parametrize("index", range(len(GOLDEN["texts"])))
def test_smollm2_equals_llama_cpp(index):
    tokenizer, text = fixtures.smollm2(), GOLDEN["texts"][index]
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert [GOLDEN["source_ids"][i] for i in ids] == GOLDEN["golden"][index]
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("index", [i for i, text in enumerate(PIECES["texts"]) if "<s>" not in text])
def test_sentencepiece_equals_the_original(index):
    tokenizer, text = fixtures.sentencepiece(), PIECES["texts"][index]
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == PIECES["golden"][index]
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("text", GOLDEN["texts"])
def test_families_equal_their_source_on_the_corpus(pairs, name, text):
    source, ours = pairs[name]
    assert ours.encode(text, add_special_tokens=False) == source.encode(text).ids


@settings(max_examples=150)
@given(st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(" \t\r\n'sdLl19/.한é")), max_size=40))
def test_families_equal_their_source_on_any_text(pairs, text):
    for source, ours in pairs.values():
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == source.encode(text).ids
        assert ours.decode(ids, skip_special_tokens=False) == source.decode(ids, skip_special_tokens=False)


@settings(max_examples=150)
@given(st.text(st.characters(codec="utf-8"), max_size=40).filter(lambda text: "\u2581" not in text and "<" not in text))
def test_sentencepiece_round_trip(text):
    tokenizer = fixtures.sentencepiece()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_family_builds_and_round_trips():
    metadata = fixtures.smollm2_metadata()
    for name in FAMILIES:
        tokenizer = fixtures.from_gguf({**metadata, "pre": name})
        assert tokenizer.decode(tokenizer.encode("Hello, 한국 123 \n\n end's")) == "Hello, 한국 123 \n\n end's", name


def test_unknown_kinds_are_refused_with_what_is_supported():
    metadata = fixtures.smollm2_metadata()
    with pytest.raises(UnsupportedError, match=r"'klingon'.*llama-bpe.*smollm"):
        fixtures.from_gguf({**metadata, "pre": "klingon"})
    with pytest.raises(UnsupportedError, match="'bert'; supported: gpt2, llama"):
        fixtures.from_gguf({**metadata, "model": "bert"})


def test_json_round_trip_is_the_same_tokenizer(tmp_path):
    for original in (fixtures.smollm2(), fixtures.sentencepiece()):
        again = fixtures.from_json(tmp_path, Backend.from_str(original.to_json()))
        for text in GOLDEN["texts"]:
            assert again.encode(text) == original.encode(text)
        assert again.pieces.raw == original.pieces.raw


def test_bos_and_eos_rules():
    plain = fixtures.smollm2_metadata()
    bos, eos = 1, 2
    ids = fixtures.from_gguf(plain).encode("a")
    assert fixtures.from_gguf({**plain, "add_bos_token": True, "add_eos_token": True}).encode("a") == [bos, *ids, eos]
    unsaid = {key: value for key, value in plain.items() if key != "add_bos_token"}
    assert fixtures.from_gguf(unsaid).encode("a") == ids
    assert fixtures.from_gguf({**unsaid, "pre": "llama-bpe"}).encode("a")[0] == bos
    assert fixtures.sentencepiece().encode("a")[0] == 1
    assert fixtures.sentencepiece().encode("a", add_special_tokens=False)[0] != 1


def test_sentencepiece_without_space_prefix():
    tokenizer = fixtures.from_gguf({**fixtures.sentencepiece_metadata(), "add_space_prefix": False})
    assert tokenizer.decode(tokenizer.encode(" a  b")) == " a  b"
    assert tokenizer.encode("def", False) != fixtures.sentencepiece().encode("def", False)


def test_special_tokens_in_text_are_parsed_and_skipped():
    tokenizer = fixtures.smollm2()
    ids = tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n", add_special_tokens=False)
    assert ids[0] == 1
    assert tokenizer.is_special(1)
    assert not tokenizer.is_special(ids[1])
    assert tokenizer.decode(ids) == "user\nHi\n"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>user\nHi<|im_end|>\n"
    assert tokenizer.token_to_id("<|im_end|>") == 2
    assert tokenizer.special_texts["eos_token"] == "<|im_end|>"


def test_eos_ids_come_from_everywhere():
    assert fixtures.smollm2().eos_token_ids == (2, 0)  # eos, then <|endoftext|> by name
    assert fixtures.from_gguf({**fixtures.smollm2_metadata(), "eot_token_id": 5}).eos_token_ids == (2, 5, 0)
    listed = fixtures.from_gguf(fixtures.smollm2_metadata(), generation_config={"eos_token_id": [7, 2]})
    assert listed.eos_token_ids == (2, 0, 7)
    with pytest.raises(CheckpointError, match="eos_token_id"):
        fixtures.from_gguf(fixtures.smollm2_metadata(), generation_config={"eos_token_id": "2"})


def test_tokenizer_config_adds_tokens_and_switches(tmp_path):
    backend = fixtures.trained(GPT2)
    size = backend.get_vocab_size()
    added = {"content": "<extra>", "special": True, "normalized": False}
    config = {
        "added_tokens_decoder": {str(size): added},
        "bos_token": {"content": "<|im_start|>"},
        "eos_token": "<|im_end|>",
        "tokenizer_class": "LlamaTokenizerFast",
        "add_bos_token": True,
        "add_eos_token": True,
    }
    tokenizer = fixtures.from_json(tmp_path, backend, config)
    assert tokenizer.encode("<extra>") == [1, size, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2,))
    with pytest.raises(CheckpointError, match="declares"):
        fixtures.from_json(tmp_path, backend, {"added_tokens_decoder": {str(size + 5): added}})
    with pytest.raises(CheckpointError, match="not a token id"):
        fixtures.from_json(tmp_path, backend, {"added_tokens_decoder": {"x": added}})
    with pytest.raises(CheckpointError, match="no content"):
        fixtures.from_json(tmp_path, backend, {"added_tokens_decoder": {str(size): 3}})


def test_padding_and_truncation_of_the_file_are_ignored(tmp_path):
    backend = fixtures.trained(GPT2)
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    assert len(fixtures.from_json(tmp_path, backend).encode("one two three four")) > 2


def test_metaspace_decoder(tmp_path):
    backend = Backend(models.BPE(vocab={"▁": 0, "a": 1, "▁a": 2, "é": 3}, merges=[("▁", "a")]))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer = fixtures.from_json(tmp_path, backend)
    assert tokenizer.decode(tokenizer.encode("a a é")) == "a a é"


def test_word_pieces_are_refused(tmp_path):
    backend = Backend(models.WordPiece(vocab={"a": 0, "[UNK]": 1}))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedError, match="WordPiece; supported"):
        fixtures.from_json(tmp_path, backend)


def test_token_bytes():
    tokenizer = fixtures.smollm2()
    for text in ("한", "😀", "a b", "\n"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert tokenizer.token_bytes(2) == b"<|im_end|>"
    assert tokenizer.token_bytes(10**9) == b""
    assert tokenizer.token_bytes(-1) == b""
    pieces = fixtures.sentencepiece()
    ids = pieces.encode("😀", add_special_tokens=False)
    assert b"".join(map(pieces.token_bytes, ids)) == " 😀".encode()
    assert pieces.id_to_text(ids[-1]) == "\ufffd"


@settings(max_examples=150)
@given(st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(" aᄒ\u1161\u11ab")), max_size=40))
def test_the_least_number_of_tokens(pairs, text):
    for tokenizer in (*(ours for _, ours in pairs.values()), fixtures.smollm2(), fixtures.sentencepiece()):
        assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False))


def test_the_least_number_of_tokens_is_of_use_and_careful(tmp_path):
    assert fixtures.smollm2().least_tokens("word " * 1_000_000) > 50_000
    assert fixtures.sentencepiece().least_tokens("word " * 1_000_000) > 50_000
    backend = fixtures.trained(GPT2)
    backend.add_tokens([AddedToken("<greedy>", lstrip=True, normalized=False)])
    assert fixtures.from_json(tmp_path, backend).least_tokens("x" * 10**6) == 0
    backend = fixtures.trained(GPT2)
    backend.normalizer = normalizers.Strip()
    assert fixtures.from_json(tmp_path, backend).least_tokens(" " * 10**6) == 0


def test_bad_input_is_a_request_error():
    tokenizer = fixtures.smollm2()
    with pytest.raises(RequestError, match="surrogate"):
        tokenizer.encode("a\ud800b")
    for ids in ([tokenizer.vocab_size], [-1], [1.5], [True], ["1"]):
        with pytest.raises(RequestError, match="not a token id"):
            tokenizer.decode(ids)


def test_broken_tokens_keep_their_ids():
    metadata = fixtures.smollm2_metadata()
    size = len(metadata["tokens"])
    odd = [b"\xff\xfe", b"\xff\xfe", "", "\ud800", "a"]  # invalid, repeated, empty, a surrogate, a duplicate
    metadata.update(tokens=metadata["tokens"] + odd, token_type=metadata["token_type"] + [1] * len(odd))
    tokenizer = fixtures.from_gguf(metadata)
    assert tokenizer.vocab_size == size + len(odd)
    assert tokenizer.encode("abc", False) == fixtures.smollm2().encode("abc", False)
    assert isinstance(tokenizer.decode(list(range(size, size + len(odd)))), str)


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": None},
        {"tokens": []},
        {"tokens": [1, 2]},
        {"tokens": "abc"},
        {"token_type": [1]},
        {"token_type": ["x"]},
        {"merges": None},
        {"merges": ["nospace"]},
        {"merges": ["zzzz qqqq"]},
        {"merges": [7]},
        {"bos_token_id": 10**6, "add_bos_token": True},
        {"eos_token_id": "x"},
        {"unknown_token_id": -7},
    ],
)
def test_contradictory_metadata_is_a_checkpoint_error(change):
    with pytest.raises(CheckpointError):
        fixtures.from_gguf({**fixtures.smollm2_metadata(), **change})


@pytest.mark.parametrize("scores", [None, [0.0], [float("nan")] * len(PIECES["tokens"])])
def test_bad_scores_are_a_checkpoint_error(scores):
    with pytest.raises(CheckpointError, match="scores"):
        fixtures.from_gguf({**fixtures.sentencepiece_metadata(), "scores": scores})


def test_an_absurdly_long_piece_is_refused_not_split_for_minutes():
    metadata = fixtures.sentencepiece_metadata()
    metadata["tokens"] = [*metadata["tokens"][:-1], "x" * 100_000]
    with pytest.raises(CheckpointError, match="characters long"):
        fixtures.from_gguf(metadata)


@settings(max_examples=60)
@given(st.data())
def test_mangled_metadata_never_crashes(data):
    metadata = data.draw(st.sampled_from([fixtures.smollm2_metadata(), fixtures.sentencepiece_metadata()]))
    junk = st.one_of(
        st.none(), st.integers(-2, 2**33), st.text(max_size=5), st.binary(max_size=5), st.lists(st.integers(), max_size=3)
    )
    for key in data.draw(st.lists(st.sampled_from(sorted(metadata)), max_size=3)):
        value = metadata[key]
        if isinstance(value, list) and value and data.draw(st.booleans()):
            value = list(value)
            value[data.draw(st.integers(0, len(value) - 1))] = data.draw(junk)
            metadata[key] = value
        else:
            metadata[key] = data.draw(junk)
    try:
        tokenizer = fixtures.from_gguf(metadata)
    except (CheckpointError, UnsupportedError):
        return
    assert isinstance(tokenizer.decode(tokenizer.encode("some text 한")), str)


def test_files_that_are_not_tokenizers(tmp_path):
    for content in (b"", b"{}", b"\xff\xfe", b'{"model": 3}', b"[" * 100_000):
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
            load_tokenizer(Checkpoint("m", {}, {}, TokenizerSource(json_path=str(tmp_path / "tokenizer.json"))))
    with pytest.raises(CheckpointError, match="cannot read"):
        load_tokenizer(Checkpoint("m", {}, {}, TokenizerSource(json_path=str(tmp_path / "none.json"))))
    with pytest.raises(CheckpointError, match="no tokenizer"):
        load_tokenizer(Checkpoint("m", {}, {}, TokenizerSource()))


def test_added_tokens_with_spaces_and_accents(tmp_path):
    backend = fixtures.trained(GPT2)
    backend.add_tokens([AddedToken("é à", normalized=False)])
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer = fixtures.from_json(tmp_path, backend)
    ids = tokenizer.encode("xé ày")
    assert tokenizer.decode(ids) == "xé ày"
    assert tokenizer.token_to_id("é à") in ids


def test_importing_text_imports_nothing_heavy():
    heavy = "llguidance transformers huggingface_hub torch"
    code = (
        "import sys, forno.text, forno.text.tokenizer, forno.text.chat, forno.text.tools, forno.text.constraints\n"
        f"loaded = [name for name in {heavy.split()!r} if name in sys.modules]\n"
        "assert not loaded, loaded\n"
        "import forno.text as text\n"
        "assert all(hasattr(text, name) for name in text.__all__)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
