"""JSON Schemas, regexes, grammars and forced tool calls as masks over the next token. llguidance does the parsing.

Fails closed: what cannot be enforced exactly is refused with its reason, at compile time where possible. llguidance is
imported, and its view of the vocabulary built, with the first constraint.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from forno.errors import ConstraintError
from forno.request import TokenConstraint
from forno.text import schema
from forno.text.spec import ConstraintSpec, ForcedCalls

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from forno.text.tokenizer import Tokenizer

MAX_REGEX = 16 << 10
MAX_GRAMMAR = 64 << 10
MAX_RULES = 500
"""Rules of a grammar: llguidance follows them recursively, and a chain of some thousands overflows its stack."""
MAX_CHOICES = 2000

# A bounded run between JSON tokens: enough to indent by, too little for a small model to lose itself in.
_JSON_OPTIONS = {
    "whitespace_flexible": True,
    "whitespace_pattern": r"[ \n]{1,40}",
    "lenient": False,
    "coerce_one_of": False,
    # Without \\uXXXX: written so, a key would escape the patterns and names it is checked against.
    "json_allowed_escapes": '"\\\\bfnrt',
}
# What a grammar could do that we would not honour, or not check.
_REFUSED_DIRECTIVES = ("%json", "%lark", "%llguidance", "temperature=")

Factory = Callable[[], TokenConstraint]


class ConstraintCompiler:
    """Compiles specs for one tokenizer and keeps the last ones. Safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer, cache_size: int = 32) -> None:
        self._tokenizer = tokenizer
        self._cache_size = cache_size
        self._cache: OrderedDict[str, Factory] = OrderedDict()
        self._vocabulary: LLTokenizer | None = None
        self._lock = Lock()

    def compile(self, spec: ConstraintSpec) -> Factory:
        """A function that makes a fresh constraint per request. Milliseconds, or a few hundred for the first one ever.
        Raises ``ConstraintError`` saying what cannot be enforced."""
        try:
            key = spec.key()
        except (TypeError, ValueError, RecursionError) as error:
            raise ConstraintError(f"the {spec.kind} constraint is not JSON: {error}") from error
        with self._lock:
            if key not in self._cache:
                self._cache[key] = self._compile(spec)
            self._cache.move_to_end(key)
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
            return self._cache[key]

    def _compile(self, spec: ConstraintSpec) -> Factory:
        from llguidance import LLMatcher, LLParserLimits

        grammar = _GRAMMARS[spec.kind](spec.value)
        # The fuel bounds memory, about 18 MB for the worst grammar, and every cached one keeps its own: nested counts
        # in a regex, each a little different, would fill the machine. Long texts and 2,000 choices need 50,000.
        limits = LLParserLimits(initial_lexer_fuel=100_000, max_grammar_size=200_000, verbose_errors=False)
        _, problems = LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
        if problems:
            raise ConstraintError(f"the {spec.kind} constraint cannot be enforced: {'; '.join(problems)[:500]}")
        prototype = LLMatcher(self._view(), grammar, log_level=0, limits=limits)
        first = _Constraint(prototype.deep_copy(), self._tokenizer.eos_token_ids, self._tokenizer.vocab_size)
        mask = np.zeros(_words(self._tokenizer.vocab_size), np.uint32)
        first.fill_mask(mask)
        if not mask.any():
            raise ConstraintError(f"the {spec.kind} constraint allows no text at all")
        return lambda: _Constraint(prototype.deep_copy(), self._tokenizer.eos_token_ids, self._tokenizer.vocab_size)

    def _view(self) -> LLTokenizer:
        if self._vocabulary is None:
            from llguidance import LLTokenizer, TokenizerWrapper

            if not self._tokenizer.eos_token_ids:
                raise ConstraintError("this model has no end-of-sequence token, so constrained output could never end")
            wrapper = TokenizerWrapper(_Vocabulary(self._tokenizer))
            self._vocabulary = LLTokenizer(wrapper, eos_token=list(self._tokenizer.eos_token_ids))
        return self._vocabulary


class _Vocabulary:
    """The vocabulary in the shape llguidance reads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.eos_token_ids[0]
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = tokenizer.pieces.raw
        self.special_token_ids = sorted(tokenizer.pieces.special | set(tokenizer.eos_token_ids))

    def __call__(self, text: str) -> list[int]:
        """Tokens whose bytes are exactly ``text``: how llguidance spells what a grammar leaves no choice about."""
        ids = self._spell(text)
        if any(self._tokenizer.is_special(index) for index in ids):  # the text only quotes a special token
            ids = [index for character in text for index in self._spell(character)]
        return ids

    def _spell(self, text: str) -> list[int]:
        if not self._tokenizer.pieces.strips_leading_space:
            return self._tokenizer.encode(text, add_special_tokens=False)
        anchor = "\x02"  # takes the space that encoding puts in front, and merges with nothing
        ids = self._tokenizer.encode(anchor + text, add_special_tokens=False)
        skipped = 0
        while skipped < len(f" {anchor}"):
            skipped += len(self.tokens[ids[0]])
            ids = ids[1:]
        return ids


class _Constraint:
    """See ``forno.request.TokenConstraint``."""

    __slots__ = ("_eos", "_matcher", "_words")

    def __init__(self, matcher: LLMatcher, eos: Sequence[int], vocab_size: int) -> None:
        self._matcher = matcher
        self._eos = eos
        self._words = _words(vocab_size)

    def fill_mask(self, mask: Any) -> None:
        if len(mask) < self._words or mask.dtype != np.uint32 or not mask.flags.c_contiguous:
            raise ConstraintError(f"the mask must be {self._words} contiguous uint32 words or more")
        mask[self._words :] = 0
        if self.is_done():
            mask[: self._words] = 0
            for token in self._eos:
                mask[token >> 5] |= np.uint32(1 << (token & 31))
            return
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, self._words * 4)
        self._check()

    def accept(self, token: int) -> None:
        if token in self._eos and self._matcher.is_accepting():
            return  # the request ends here; feeding it on would only close the matcher
        if not self._matcher.consume_token(token):
            self._check()
            raise ConstraintError(f"token {token} is not allowed here")

    def is_done(self) -> bool:
        self._check()
        return self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ConstraintError(f"the constraint failed: {_plain(self._matcher.get_error())}")


def _plain(error: str) -> str:
    """llguidance's error without its internal marks."""
    if "NoExtensionBias" in error:
        return "no text fits it"
    return error.replace("<non-verbose/>", "").strip()[:500]


def _words(vocab_size: int) -> int:
    return (vocab_size + 31) // 32


def _json_object(value: Any) -> str:
    return _json_schema({"type": "object"})


def _json_schema(value: Any) -> str:
    from llguidance import LLMatcher

    schema.check(value)
    if value is False:
        raise ConstraintError("the schema is false: nothing fits it", "response_format")
    value = {} if value is True else value
    return LLMatcher.grammar_from_json_schema(json.dumps(value), overrides=_JSON_OPTIONS)  # type: ignore[arg-type]


def _regex(value: Any) -> str:
    from llguidance import LLMatcher

    if not isinstance(value, str) or len(value) > MAX_REGEX:
        raise ConstraintError(f"regex must be text of at most {MAX_REGEX} characters", "regex")
    pattern = value.removeprefix("^")  # the whole output matches anyway
    if pattern.endswith("$") and (len(pattern) - len(pattern.removesuffix("$").rstrip("\\"))) % 2 == 1:
        pattern = pattern.removesuffix("$")
    return LLMatcher.grammar_from_regex(pattern)


def _grammar(value: Any) -> str:
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    if not isinstance(value, str) or len(value) > MAX_GRAMMAR:
        raise ConstraintError(f"grammar must be text of at most {MAX_GRAMMAR} characters", "grammar")
    for directive in _REFUSED_DIRECTIVES:
        if directive in value:
            raise ConstraintError(f"grammar: {directive} is not supported", "grammar")
    if value.count(":") > MAX_RULES:
        raise ConstraintError(f"grammar has more than {MAX_RULES} rules", "grammar")
    try:
        return LLMatcher.grammar_from_lark(any_to_lark(value))
    except (Exception, RecursionError) as error:
        raise ConstraintError(f"grammar is neither Lark nor GBNF: {error}", "grammar") from error


def _choice(value: Any) -> str:
    from llguidance import LLMatcher

    texts = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if not texts or len(texts) > MAX_CHOICES or not all(isinstance(text, str) and text for text in texts):
        raise ConstraintError(f"choice must be 1 to {MAX_CHOICES} texts, none empty", "choice")
    if sum(map(len, texts)) > MAX_GRAMMAR:
        raise ConstraintError(f"the choices have more than {MAX_GRAMMAR} characters together", "choice")
    return LLMatcher.grammar_from_lark("start: " + " | ".join(_quote(text) for text in dict.fromkeys(texts)))


def _calls(value: ForcedCalls) -> str:
    from llguidance import LLMatcher

    rules = []
    for index, call in enumerate(value.calls):
        schema.check(call.schema, f"tools[{index}].function.parameters")
        body = json.dumps({**call.schema, "x-guidance": _JSON_OPTIONS})
        rules.append(f"call_{index}: {_quote(call.before)} %json {body} {_quote(call.after)}")
    one = " | ".join(f"call_{index}" for index in range(len(value.calls)))
    many = "" if value.separator is None else f" ({_quote(value.separator)} call)*"
    return LLMatcher.grammar_from_lark("\n".join([f"start: call{many}", f"call: {one}", *rules]))


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_GRAMMARS: dict[str, Callable[[Any], str]] = {
    "json_object": _json_object,
    "json_schema": _json_schema,
    "regex": _regex,
    "grammar": _grammar,
    "choice": _choice,
    "calls": _calls,
}
