from __future__ import annotations

import contextlib
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forno.errors import ConstraintError
from forno.text.constraints import MAX_CHOICES, ConstraintCompiler
from forno.text.spec import ConstraintSpec
from forno.text.tools import HERMES, LLAMA3, ToolCallParser, tool_constraint
from tests.text import text_fixtures as fixtures


@pytest.fixture(scope="module")
def compiler() -> ConstraintCompiler:
    return ConstraintCompiler(fixtures.smollm2())


def allowed(constraint: Any, words: int | None = None) -> set[int]:
    vocab = fixtures.smollm2().vocab_size
    mask = np.full(words or (vocab + 31) // 32, 0xFFFFFFFF, np.uint32)
    constraint.fill_mask(mask)
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def accepts(compiler: ConstraintCompiler, spec: ConstraintSpec, text: str) -> bool:
    """Whether ``text`` can be the whole output, as the masks say."""
    tokenizer = fixtures.smollm2()
    constraint = compiler.compile(spec)()
    for token in tokenizer.encode(text, add_special_tokens=False):
        if token not in allowed(constraint):
            return False
        constraint.accept(token)
    ends = allowed(constraint) & set(tokenizer.eos_token_ids)
    assert ends in (set(), set(tokenizer.eos_token_ids))
    return bool(ends)


def schema(value: Any) -> ConstraintSpec:
    return ConstraintSpec("json_schema", value)


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
OBJECT = {"type": "object"}

# spec, texts it takes, texts it refuses
CASES: list[tuple[ConstraintSpec, list[str], list[str]]] = [
    (ConstraintSpec("json_object"), ["{}", '{"a": [1, {"b": null}]}', '{\n  "a": "é한"\n}'], ["[]", "{", '{"a"}', "1", "{} x"]),
    (schema(PERSON), ['{"name": "Al", "age": 7}'], ['{"name": "", "age": 7}', '{"name": "Al"}', '{"name": "Al", "age": 151}']),
    (schema(PERSON), ['{\n "name":"Al",\n "age":7\n}'], ['{"name": "Al", "age": 7, "x": 1}', '{"name": "Al", "age": 1.5}']),
    (schema(True), ["1", '"a"', "null"], ["a", ""]),
    (schema({"type": ["integer", "null"]}), ["-3", "null"], ["1.5", '"3"', "true"]),
    (schema({"enum": ["a", 1, None, [1]]}), ['"a"', "1", "null", "[1]"], ['"b"', "2", "[]"]),
    (schema({"const": {"a": [1, "x"]}}), ['{"a": [1, "x"]}'], ['{"a": [1]}', "{}"]),
    (schema({"type": "number", "exclusiveMinimum": 0, "maximum": 1}), ["0.5", "1"], ["0", "1.5", "-1"]),
    (schema({"type": "integer", "multipleOf": 5}), ["10", "0"], ["7"]),
    (schema({"type": "string", "pattern": "^a+$"}), ['"aa"'], ['""', '"ab"']),
    (schema({"type": "string", "pattern": "b"}), ['"abc"', '"b"'], ['"ac"']),
    (schema({"type": "string", "maxLength": 2}), ['"한글"'], ['"abc"']),
    (schema({"type": "string", "format": "date"}), ['"2024-02-01"'], ['"yesterday"', '"2024-13-01"']),
    (schema({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}), ["[true]"], ["[]", "[1]"]),
    (schema({"type": "array", "prefixItems": [{"type": "string"}], "items": False}), ['["a"]', "[]"], ['["a", 1]', "[1]"]),
    (schema({**OBJECT, "patternProperties": {"^n_": {"type": "integer"}}}), ['{"n_a": 1, "b": "x"}'], ['{"n_a": "x"}']),
    (schema({**OBJECT, "additionalProperties": {"type": "integer"}}), ['{"x": 1}'], ['{"x": "y"}']),
    (schema({**OBJECT, "maxProperties": 1, "minProperties": 1}), ['{"a": 1}'], ["{}", '{"a": 1, "b": 2}']),
    (schema({"anyOf": [{"type": "integer"}, {"type": "string"}]}), ["1", '"a"'], ["null"]),
    (schema({"oneOf": [{"type": "integer"}, {"type": "string"}]}), ["1", '"a"'], ["null"]),
    (
        schema(
            {
                "allOf": [
                    {**OBJECT, "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                    {**OBJECT, "properties": {"b": {"type": "string"}}, "required": ["b"]},
                ]
            }
        ),
        ['{"a": 1, "b": "x"}'],
        ['{"a": 1}', '{"b": "x"}', '{"a": "1", "b": "x"}', '{"a": 1, "b": 2}'],
    ),
    (
        schema({"$ref": "#/$defs/t", "$defs": {"t": {**OBJECT, "properties": {"k": {"$ref": "#/$defs/t"}}}}}),
        ['{"k": {"k": {}}}'],
        ['{"k": 1}', '{"k": {"k": 1}}'],
    ),
    (ConstraintSpec("regex", r"\d{3}-\d{4}"), ["555-1234"], ["555", "5555-1234", "a"]),
    (ConstraintSpec("regex", "^(yes|no)$"), ["yes", "no"], ["maybe", "yesno"]),
    (ConstraintSpec("regex", r"a\$"), ["a$"], ["a"]),
    (ConstraintSpec("regex", r"a\\$"), ["a\\"], ["a$"]),
    (ConstraintSpec("choice", ["yes", "no", 'a "quoted" \\ 한']), ["yes", "no", 'a "quoted" \\ 한'], ["ye", "yes no", "maybe"]),
    (ConstraintSpec("grammar", 'start: "a" b\nb: /[0-9]+/'), ["a12"], ["a", "b1"]),
    (ConstraintSpec("grammar", 'root ::= "a" b\nb ::= [0-9]+'), ["a12"], ["a", "b1"]),
]


@pytest.mark.parametrize(("spec", "good", "bad"), CASES)
def test_takes_what_fits_and_nothing_else(compiler, spec, good, bad):
    assert [text for text in good if not accepts(compiler, spec, text)] == []
    assert [text for text in bad if accepts(compiler, spec, text)] == []


ESCAPED = [
    # A key spelled with escapes would slip past the names and patterns it must be checked against.
    (schema({**OBJECT, "properties": {"a": {"type": "integer"}}}), '{"\\u0061": "x"}'),
    (schema({**OBJECT, "patternProperties": {".": {"type": "integer"}}}), '{"\\u4f2e": "x"}'),
]


@pytest.mark.parametrize(("spec", "text"), ESCAPED)
def test_escaped_keys_do_not_slip_past(compiler, spec, text):
    assert not accepts(compiler, spec, text)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (schema({"type": "string", "format": "weird"}), "weird"),
        (schema({"type": "blah"}), "blah"),
        (schema({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}), "oneOf"),
        (schema({"not": {"type": "string"}}), "'not'"),
        (schema({"type": "integer", "minimum": 5, "maximum": 3}), "greater than"),
        (schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), "failed|allows no"),
        (schema(False), "false"),
        (schema({"type": "string", "pattern": "(?=a)b"}), "look-around"),
        (schema({"type": "string", "minLength": "x"}), "minLength"),
        (schema({"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {}}} for j in range(8)]} for i in range(8)]}), "too large"),
        (schema(object()), "JSON"),
        (ConstraintSpec("regex", "(?<=a)b"), "regex"),
        (ConstraintSpec("regex", "("), "regex"),
        (ConstraintSpec("regex", "a" * 20_000), "at most"),
        (ConstraintSpec("regex", 3), "must be text"),
        (ConstraintSpec("regex", "(" * 5000 + ")" * 5000), "regex"),
        (ConstraintSpec("grammar", "start: nothing"), "unknown name"),
        (ConstraintSpec("grammar", "start: start"), "failed|allows no"),
        (ConstraintSpec("grammar", 'start: %json {"not": {}}'), "%json is not supported"),
        (ConstraintSpec("grammar", 'start: a\na[temperature=0.5]: "x"'), "temperature"),
        (ConstraintSpec("grammar", "start: " + "(" * 5000 + '"a"' + ")" * 5000), "nested"),
        (ConstraintSpec("grammar", "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(5000))), "rules|characters"),
        (ConstraintSpec("grammar", ""), "grammar"),
        (ConstraintSpec("grammar", 'root ::= "a'), "grammar"),
        (ConstraintSpec("choice", []), "choice"),
        (ConstraintSpec("choice", [""]), "choice"),
        (ConstraintSpec("choice", "abc"), "choice"),
        (ConstraintSpec("choice", ["x"] * (MAX_CHOICES + 1)), "choice"),
    ],
)
def test_what_cannot_be_enforced_is_refused(compiler, spec, message):
    with pytest.raises(ConstraintError, match=message):
        compiler.compile(spec)


def test_a_runaway_regex_fails_its_request_not_the_process(compiler):
    constraint = compiler.compile(ConstraintSpec("regex", "((a{1,100}){1,100}){1,100}b"))()
    token = fixtures.smollm2().encode("a", add_special_tokens=False)[0]

    def sample() -> None:
        for _ in range(1000):
            assert token in allowed(constraint)
            constraint.accept(token)

    with pytest.raises(ConstraintError, match=r"too many expressions constructed$"):  # none of llguidance's marks
        sample()


@pytest.mark.parametrize(
    "spec",
    [ConstraintSpec("regex", r"[^\x00-\U0010FFFF]"), ConstraintSpec("json_schema", {"$ref": "#"})],
    ids=["empty class", "schema of itself"],
)
def test_a_constraint_that_nothing_fits_says_so(compiler, spec):
    with pytest.raises(ConstraintError, match="no text"):
        compiler.compile(spec)


def resident_megabytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def test_cached_constraints_stay_small():
    """Nested counts are the worst that a short regex can ask for; clients can send endlessly many."""
    compiler = ConstraintCompiler(fixtures.smollm2())
    compiler.compile(ConstraintSpec("regex", "a"))
    before = resident_megabytes()
    for count in range(10, 20):
        with contextlib.suppress(ConstraintError):
            compiler.compile(ConstraintSpec("regex", f"((a{{100}}){{100}}){{{count}}}"))
    assert resident_megabytes() - before < 10 * 25


def test_the_state_is_each_requests_own(compiler):
    make = compiler.compile(ConstraintSpec("choice", ["ab", "cd"]))
    first, second = make(), make()
    (a,) = fixtures.smollm2().encode("a", add_special_tokens=False)
    (c,) = fixtures.smollm2().encode("c", add_special_tokens=False)
    first.accept(a)
    assert c not in allowed(first)
    assert c in allowed(second)


def test_done_means_only_the_end_may_follow(compiler):
    tokenizer = fixtures.smollm2()
    constraint = compiler.compile(ConstraintSpec("choice", ["yes", "yes please"]))()
    for token in tokenizer.encode("yes", add_special_tokens=False):
        assert not constraint.is_done()
        constraint.accept(token)
    assert not constraint.is_done()
    assert set(tokenizer.eos_token_ids) < allowed(constraint)
    for token in tokenizer.encode(" please", add_special_tokens=False):
        constraint.accept(token)
    assert constraint.is_done()
    assert allowed(constraint) == set(tokenizer.eos_token_ids)
    constraint.accept(tokenizer.eos_token_ids[0])
    assert constraint.is_done()


def test_a_token_that_does_not_fit_is_an_error(compiler):
    constraint = compiler.compile(ConstraintSpec("choice", ["yes"]))()
    (token,) = fixtures.smollm2().encode("n", add_special_tokens=False)
    with pytest.raises(ConstraintError, match="failed"):
        constraint.accept(token)


def test_the_end_is_refused_before_it_is_due(compiler):
    constraint = compiler.compile(ConstraintSpec("json_object"))()
    with pytest.raises(ConstraintError):
        constraint.accept(fixtures.smollm2().eos_token_ids[0])


def test_a_padded_mask_is_cleared_beyond_the_vocabulary(compiler):
    constraint = compiler.compile(ConstraintSpec("json_object"))()
    vocab = fixtures.smollm2().vocab_size
    assert max(allowed(constraint, words=(vocab + 31) // 32 + 40)) < vocab
    with pytest.raises(ConstraintError, match="mask"):
        constraint.fill_mask(np.zeros(3, np.uint32))


def test_equal_specs_are_compiled_once_and_old_ones_forgotten():
    compiler = ConstraintCompiler(fixtures.smollm2(), cache_size=2)
    one = compiler.compile(ConstraintSpec("choice", ["a"]))
    assert compiler.compile(ConstraintSpec("choice", ["a"])) is one
    compiler.compile(ConstraintSpec("choice", ["b"]))
    compiler.compile(ConstraintSpec("choice", ["c"]))
    assert compiler.compile(ConstraintSpec("choice", ["a"])) is not one


def test_the_order_of_properties_is_part_of_a_schema():
    first = {"properties": {"a": {}, "b": {}}}
    second = {"properties": {"b": {}, "a": {}}}
    assert schema(first).key() != schema(second).key()


def generate(constraint: Any, seed: int) -> str:
    """A model that picks at random among what is allowed, with a liking for ending what it began."""
    tokenizer, pick, ids = fixtures.smollm2(), random.Random(seed), []
    ends = set(tokenizer.eos_token_ids)
    while not constraint.is_done() and len(ids) < 400:
        choices = allowed(constraint)
        if choices & ends and (pick.random() < 0.6 or choices <= ends):
            break
        closing = [i for i in choices - ends if any(c in '"}],' for c in tokenizer.id_to_text(i))]
        token = pick.choice(sorted(closing if closing and pick.random() < 0.6 else choices - ends))
        constraint.accept(token)
        ids.append(token)
    return tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_the_model_samples_fits_the_schema(compiler, seed):
    person = json.loads(generate(compiler.compile(schema(PERSON))(), seed))
    assert set(person) == {"name", "age"}
    assert len(person["name"]) >= 1
    assert 0 <= person["age"] <= 150


TOOLS = [{"function": {"name": "weather", "parameters": PERSON}}, {"function": {"name": "now"}}]


@pytest.mark.parametrize("form", [HERMES, LLAMA3], ids=["hermes", "llama3"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("seed", range(4))
def test_forced_calls_parse(compiler, form, choice, seed):
    text = generate(compiler.compile(tool_constraint(form, TOOLS, choice))(), seed)
    parser = ToolCallParser(form, ["weather", "now"], enforced=True)
    deltas = [parser.add(text), parser.flush()]
    assert "".join(delta.content for delta in deltas) == ""
    calls = [call for delta in deltas for call in delta.calls]
    named = [call.name for call in calls if call.name is not None]
    assert named
    assert set(named) <= {"weather", "now"}
    if choice != "required":
        assert named == ["weather"]
    for index in range(len(named)):
        assert isinstance(json.loads("".join(call.arguments for call in calls if call.index == index)), dict)


def test_a_tool_schema_we_cannot_enforce_names_the_tool(compiler):
    tools = [{"function": {"name": "f", "parameters": {"type": "object", "not": {}}}}]
    with pytest.raises(ConstraintError, match=r"tools\[0\].*'not'"):
        compiler.compile(tool_constraint(HERMES, tools, "required"))


def test_sentencepiece_vocabularies_work_too():
    tokenizer = fixtures.sentencepiece()
    constraint = ConstraintCompiler(tokenizer).compile(ConstraintSpec("choice", ["the 😀"]))()
    mask = np.zeros((tokenizer.vocab_size + 31) // 32, np.uint32)
    ids: list[int] = []
    while not constraint.is_done():
        constraint.fill_mask(mask)
        ids.append(int(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))[-1]))
        constraint.accept(ids[-1])
    assert b"".join(map(tokenizer.token_bytes, ids)) == "the 😀".encode()


def test_text_that_quotes_a_special_token_is_spelled_out(compiler):
    tokenizer = fixtures.smollm2()
    constraint = compiler.compile(ConstraintSpec("choice", ["a<|im_end|>b"]))()
    ids: list[int] = []
    while not constraint.is_done():
        ids.append(min(allowed(constraint)))
        assert not tokenizer.is_special(ids[-1])
        constraint.accept(ids[-1])
    assert tokenizer.decode(ids) == "a<|im_end|>b"


def test_a_model_without_an_end_is_refused():
    metadata = {key: value for key, value in fixtures.sentencepiece_metadata().items() if key != "eos_token_id"}
    compiler = ConstraintCompiler(fixtures.from_gguf(metadata))
    with pytest.raises(ConstraintError, match="end-of-sequence"):
        compiler.compile(ConstraintSpec("json_object"))
