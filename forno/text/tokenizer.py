"""Text to token ids and back, for every tokenizer we support, behind one small class.

It knows nothing of chat templates or requests. Encoding is the ``tokenizers`` library's, one text per call: that path
starts no threads, so ``TOKENIZERS_PARALLELISM`` and ``RAYON_NUM_THREADS`` have no effect on it and we set neither.
``Tokenizer`` is safe to share between threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from forno.errors import CheckpointError, RequestError
from forno.text import gguf_tokenizer
from forno.text.pieces import Pieces, read_pieces

if TYPE_CHECKING:
    from forno.loader.checkpoint import Checkpoint

# A GGUF file keeps one end-of-sequence id, but chat models end a turn with another token: these, where they exist.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>", "<|end|>")

_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": gguf_tokenizer.SPACE}


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids of the tokens with a role; None where the model has none."""

    bos: int | None = None
    eos: tuple[int, ...] = ()
    """Every token that ends generation, the tokenizer's own first."""
    pad: int | None = None
    unk: int | None = None


class Tokenizer:
    """Ids index the model's vocabulary; texts are str. Raises ``RequestError`` for what a client can get wrong."""

    def __init__(self, backend: tokenizers.Tokenizer, special: SpecialIds, texts: Sequence[str] | None = None) -> None:
        """``texts`` by id, where they are at hand."""
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self.special = special
        self.pieces: Pieces = read_pieces(backend, texts)

    @property
    def bos_token_id(self) -> int | None:
        return self.special.bos

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.special.eos

    @property
    def vocab_size(self) -> int:
        """One more than the largest id. A model's logits may be padded beyond it."""
        return len(self.pieces.raw)

    @cached_property
    def special_texts(self) -> Mapping[str, str]:
        """``bos_token``, ``eos_token``, ``pad_token`` and ``unk_token`` as chat templates name them."""
        ids = {
            "bos": self.special.bos,
            "eos": next(iter(self.special.eos), None),
            "pad": self.special.pad,
            "unk": self.special.unk,
        }
        return {f"{name}_token": self.id_to_text(index) for name, index in ids.items() if index is not None}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``. Special tokens written in it are always recognised, as Hugging Face does;
        ``add_special_tokens`` adds BOS or EOS if the model wants them (False for a rendered chat template, which has its own).
        """
        try:
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (UnicodeEncodeError, TypeError) as error:
            raise RequestError("the text is not valid Unicode: it holds a lone surrogate", "prompt") from error

    def least_tokens(self, text: str) -> int:
        """No fewer tokens than this encode ``text``. Costs nothing, where encoding megabytes takes seconds: a prompt that
        cannot fit is refused without. 0 where the tokenizer gives no bound."""
        return len(text.encode("utf-8", "surrogatepass")) // self._most_bytes if self._most_bytes else 0

    @cached_property
    def _most_bytes(self) -> int:
        """Bytes of text that one token stands for at most; 0 if nothing bounds them."""
        if any(token.lstrip or token.rstrip for token in self._backend.get_added_tokens_decoder().values()):
            return 0  # such a token swallows any amount of white space
        normalizer = self._backend.normalizer
        rule = json.loads(normalizer.__getstate__()) if normalizer is not None else {}
        steps = [step for step in rule.get("normalizers", [rule]) if step != _SPACES]
        kinds = {step.get("type") for step in steps}
        if not kinds <= {None, "NFC", "Prepend"}:
            return 0  # it may leave anything out
        shrinkage = 3 if "NFC" in kinds else 1  # three Hangul letters of three bytes compose to one syllable of three
        return shrinkage * max(map(len, self.pieces.raw), default=0)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of ``ids``; bytes that are not UTF-8 become U+FFFD. A space that encoding added in front is dropped."""
        table = self.pieces.visible if skip_special_tokens else self.pieces.raw
        data = b"".join([table[index] for index in self._checked(ids)])
        if self.pieces.strips_leading_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def token_bytes(self, index: int) -> bytes:
        """What one token adds to the output, special tokens as they are written. Empty for an id without a token."""
        return self.pieces.raw[index] if 0 <= index < self.vocab_size else b""

    def id_to_text(self, index: int) -> str:
        """One token for people to read, e.g. in log-probabilities; a fragment of a character shows as U+FFFD."""
        return self.token_bytes(index).decode("utf-8", "replace")

    def token_to_id(self, text: str) -> int | None:
        """The id of a token by its exact spelling in the vocabulary, special tokens included."""
        return self._backend.token_to_id(text)

    def is_special(self, index: int) -> bool:
        return index in self.pieces.special

    def to_json(self) -> str:
        """The whole tokenizer as a ``tokenizer.json``; faster to load than to build again from GGUF metadata."""
        return self._backend.to_str()

    def _checked(self, ids: Iterable[int]) -> Iterator[int]:
        size = self.vocab_size
        for index in ids:
            if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < size:
                raise RequestError(f"{index!r} is not a token id; ids are 0 to {size - 1}", "tokens")
            yield index


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The checkpoint's tokenizer. Raises ``CheckpointError`` if its files are broken or contradict each other,
    ``UnsupportedError`` if it is of a kind we do not implement."""
    source, texts = checkpoint.tokenizer, None
    if source.gguf is not None:
        backend, texts = gguf_tokenizer.build(source.gguf)
        special = _gguf_special(backend, source.gguf)
    elif source.json_path is not None:
        backend = _from_json(source.json_path)
        _apply_config(backend, source.config)
        special = _config_special(backend, source.config)
    else:
        raise CheckpointError(f"{checkpoint.name} has no tokenizer: no tokenizer.json beside the weights, no GGUF metadata")
    declared = _declared_eos(checkpoint, backend.get_vocab_size(with_added_tokens=True))
    eos = tuple(dict.fromkeys([*special.eos, *declared]))
    return Tokenizer(backend, SpecialIds(special.bos, eos, special.pad, special.unk), texts)


def _from_json(path: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot read the tokenizer: {error}") from error
    except Exception as error:  # the library raises bare Exception for a malformed file
        raise CheckpointError(f"{path} is not a usable tokenizer.json: {error}") from error


def _apply_config(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """What ``tokenizer_config.json`` adds to ``tokenizer.json``: tokens it declares, and Llama's BOS and EOS switches."""
    known = backend.get_added_tokens_decoder()
    declared = config.get("added_tokens_decoder") or {}
    if not isinstance(declared, Mapping):
        raise CheckpointError("added_tokens_decoder in tokenizer_config.json is not an object")
    for index, entry in sorted(((_token_index(key), entry) for key, entry in declared.items()), key=lambda pair: pair[0]):
        if index not in known:
            _declare(backend, index, entry)
    flags = ("add_bos_token", "add_eos_token")
    if str(config.get("tokenizer_class", "")).startswith("Llama") and any(flag in config for flag in flags):
        bos, eos = (_named_token(backend, config, name) for name in ("bos_token", "eos_token"))
        gguf_tokenizer.surround_with(
            backend, bos if config.get("add_bos_token", True) else None, eos if config.get("add_eos_token", False) else None
        )


def _token_index(key: Any) -> int:
    try:
        return int(key)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"added_tokens_decoder in tokenizer_config.json has the key {key!r}, not a token id") from error


def _declare(backend: tokenizers.Tokenizer, index: int, entry: Any) -> None:
    text = _content(entry)
    if not isinstance(entry, Mapping) or not text:
        raise CheckpointError(f"added_tokens_decoder in tokenizer_config.json has no content for token {index}")
    options = {
        name: bool(entry[name]) for name in ("single_word", "lstrip", "rstrip", "normalized", "special") if name in entry
    }
    backend.add_tokens([tokenizers.AddedToken(text, **options)])
    if backend.token_to_id(text) != index:
        raise CheckpointError(
            f"tokenizer_config.json declares {text!r} as token {index}, but tokenizer.json makes it {backend.token_to_id(text)}"
        )


def _content(entry: Any) -> str | None:
    """A token is written as its text, or as an object with ``content``."""
    text = entry.get("content") if isinstance(entry, Mapping) else entry
    return text if isinstance(text, str) else None


def _named_token(backend: tokenizers.Tokenizer, config: Mapping[str, Any], name: str) -> tuple[str, int] | None:
    text = _content(config.get(name))
    index = None if text is None else backend.token_to_id(text)
    return None if text is None or index is None else (text, index)


def _config_special(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> SpecialIds:
    bos, eos, pad, unk = (_named_token(backend, config, f"{name}_token") for name in ("bos", "eos", "pad", "unk"))
    return SpecialIds(bos and bos[1], () if eos is None else (eos[1],), pad and pad[1], unk and unk[1])


def _gguf_special(backend: tokenizers.Tokenizer, metadata: Mapping[str, Any]) -> SpecialIds:
    size = backend.get_vocab_size(with_added_tokens=True)
    added = {token.content: index for index, token in backend.get_added_tokens_decoder().items()}
    ends = [gguf_tokenizer.special_id(metadata, name, size) for name in ("eos", "eot", "eom")]
    ends += [added.get(text) for text in _TURN_ENDS]
    bos, pad, unk = (gguf_tokenizer.special_id(metadata, name, size) for name in ("bos", "padding", "unknown"))
    return SpecialIds(bos, tuple(dict.fromkeys(index for index in ends if index is not None)), pad, unk)


def _declared_eos(checkpoint: Checkpoint, size: int) -> Sequence[int]:
    """``eos_token_id`` of generation_config.json, else of config.json: an id, a list of ids, or nothing."""
    value = checkpoint.generation_config.get("eos_token_id", checkpoint.config.get("eos_token_id"))
    ids = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
    if not all(isinstance(index, int) and not isinstance(index, bool) and index >= 0 for index in ids):
        raise CheckpointError(f"eos_token_id must be a token id or a list of them, got {value!r}")
    return [index for index in ids if index < size]
