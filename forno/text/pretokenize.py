"""How each family of byte-level BPE cuts text into words before merging, by the name GGUF files use for it.

The patterns are those of the models' own ``tokenizer.json`` files. A word never crosses a cut, so a wrong pattern
gives other tokens than the model was trained on, silently: a name that is not in the table is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forno.errors import UnsupportedError

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WHITESPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION}|{_WHITESPACE}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_PUNCTUATION}|{_WHITESPACE}"

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# Words as GPT-4o cuts them: any number of capitals, then small letters, so that camelCase is two words.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_O200K = "|".join(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?",
        r"\p{N}{1,3}",
        _O200K_PUNCTUATION,
        _WHITESPACE,
    )
)
_TEKKEN = "|".join(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
        r"\p{N}",
        _O200K_PUNCTUATION,
        _WHITESPACE,
    )
)
_DEEPSEEK3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_WHITESPACE}"
)


@dataclass(frozen=True, slots=True)
class Family:
    """One way to cut: the patterns one after the other, each match a piece of its own, then GPT-2's words if asked."""

    patterns: tuple[str, ...] = ()
    gpt2_words: bool = False
    ignore_merges: bool = False
    """A word that is itself a token is taken whole, even if no merges lead to it."""
    add_bos: bool = False
    """Whether a prompt starts with the beginning-of-sequence token where the file does not say."""
    nfc: bool = False
    """Whether text is composed first (Unicode NFC), as the model's own tokenizer does."""

    def pre_tokenizer(self) -> PreTokenizer:
        from tokenizers import Regex, pre_tokenizers

        cuts: list[PreTokenizer] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.gpt2_words))
        return pre_tokenizers.Sequence(cuts)

    def normalizer(self) -> Normalizer | None:
        from tokenizers import normalizers

        return normalizers.NFC() if self.nfc else None


_GPT2 = Family(gpt2_words=True)
_SINGLE_DIGITS = Family((r"\p{N}",), gpt2_words=True)
_BPE_LLAMA3 = Family((_LLAMA3,), ignore_merges=True, add_bos=True)

FAMILIES: dict[str, Family] = {
    # What llama.cpp assumes for files from before the field existed.
    "default": Family((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS,
    "llama3": _BPE_LLAMA3,
    "llama-v3": _BPE_LLAMA3,
    "llama-bpe": _BPE_LLAMA3,
    "dbrx": Family((_LLAMA3,)),
    "smaug-bpe": Family((_LLAMA3,)),
    "qwen2": Family((_QWEN2,), nfc=True),
    "stablelm2": Family((_QWEN2,)),
    "deepseek-r1-qwen": Family((_QWEN2,)),
    "deepseek-coder": Family((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")),
    "deepseek-v3": Family((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3_WORDS)),
    "tekken": Family((_TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o": Family((_O200K,)),
    "llama4": Family((_O200K,), add_bos=True),
}


def family(name: object) -> Family:
    """The family that GGUF calls ``name``. Raises ``UnsupportedError`` naming all there are."""
    if not isinstance(name, str) or name not in FAMILIES:
        raise UnsupportedError(
            f"the tokenizer's pre-tokenizer {name!r} is not supported; supported: {', '.join(sorted(FAMILIES))}. "
            "A directory with the model's own tokenizer.json works for any byte-level BPE"
        )
    return FAMILIES[name]
