"""What the events of an answer say, and what is wrong with some."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forno.bench.answer import Answer, ServerError, message_of, shown
from forno.bench.records import RequestRecord
from forno.bench.sse import BadStream
from tests.bench.scripted import USAGE, delta, event, usage


def read(*events: bytes, promised: bool = True) -> Answer:
    """An answer whose events come a second apart."""
    answer = Answer(RequestRecord(index=0, scheduled=0.0))
    for second, text in enumerate(events):
        answer.take(text.removeprefix(b"data: ").strip(), float(second))
    answer.finish(promised)
    return answer


DONE = b"data: [DONE]"


def test_a_whole_answer() -> None:
    role = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    finish = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    answer = read(role, delta("a"), delta("b"), delta("c"), finish, usage(completion_tokens=4), DONE)
    record = answer.record
    assert (record.first, record.last, record.gaps) == (1.0, 3.0, [1.0, 1.0])  # the role is no content
    assert (record.prompt_tokens, record.cached_tokens, record.output_tokens, record.tells_cached) == (10, 4, 4, True)
    assert (record.queue_seconds, record.finish_reason, record.chunk_tokens) == (0.003, "stop", [])
    assert ("".join(answer.text), answer.done) == ("abc", True)


@pytest.mark.parametrize(
    "choice",
    [
        {"text": "a"},
        {"delta": {"content": "a"}},
        {"delta": {"reasoning_content": "hm"}},
        {"delta": {"reasoning": "hm"}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}},
    ],
)
def test_kinds_of_content(choice: dict[str, Any]) -> None:
    assert read(event({"choices": [choice]}), usage(), DONE).record.first == 0.0


@pytest.mark.parametrize("choice", [{"text": ""}, {"delta": {}}, {"delta": {"content": None}}, {"delta": None}, {}])
def test_what_is_no_content(choice: dict[str, Any]) -> None:
    assert read(event({"choices": [choice]}), usage(), DONE).record.first is None


@pytest.mark.parametrize("extra", [{"choices": None}, {"choices": []}, {}, {"usage": None}, {"timings": None}, {"new": [1]}])
def test_what_other_servers_add_or_leave_out(extra: dict[str, Any]) -> None:
    assert read(delta("a"), event(extra), usage(), DONE).record.output_tokens == 2


def test_tokens_of_chunks_by_their_logprobs() -> None:
    chat = delta("a", logprobs={"content": [{"token": "a"}, {"token": "b"}]})
    completion = event({"choices": [{"text": "a", "logprobs": {"tokens": ["a"]}}]})
    assert read(chat, completion, usage(), DONE).record.chunk_tokens == [2, 1]
    assert read(chat, delta("b"), usage(), DONE).record.chunk_tokens == []  # one of them does not tell


def test_usage_beside_the_last_text() -> None:
    with_usage = event({"choices": [{"delta": {"content": "b"}}], "usage": USAGE})
    assert read(delta("a"), with_usage, DONE).record.prompt_tokens == 10


@pytest.mark.parametrize("details", [None, {}, {"cached_tokens": None}])
def test_a_server_that_does_not_tell_cached_tokens(details: Any) -> None:
    record = read(delta("a"), usage(prompt_tokens_details=details), DONE).record
    assert (record.cached_tokens, record.tells_cached) == (0, False)


def test_chunks_are_counted_where_no_usage_was_promised() -> None:
    assert read(delta("a"), delta("b"), delta("c"), DONE, promised=False).record.output_tokens == 3


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ((b"data: {broken",), "no chunk"),
        ((b"data: [1]",), "no chunk"),
        ((b'data: {"choices": [{"text": 7}]}',), "no chunk"),
        ((b'data: {"choices": [{"text": "\xff\xfe"}]}',), "no chunk"),
        ((b"data: ",), "no chunk"),
        ((delta("a"), DONE), "no usage came"),
        ((delta("a"), usage(completion_tokens=0), DONE), "0 output tokens, but 1 chunks"),
        ((delta("a"), usage(completion_tokens=-1), DONE), "makes no sense"),
        ((delta("a"), usage(prompt_tokens=3), DONE), "makes no sense"),
        ((delta("a"), usage(completion_tokens="2"), DONE), "no chunk"),
        ((delta("a"), usage(completion_tokens=1e300), DONE), "no chunk"),
    ],
)
def test_what_does_not_add_up(events: tuple[bytes, ...], message: str) -> None:
    with pytest.raises(BadStream, match=message):
        read(*events)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ({"message": "the engine failed", "type": "server_error"}, "the engine failed"),
        ({"error": {"message": "inner"}}, "inner"),
        ("plain", "plain"),
        ({"code": 500}, "{'code': 500}"),
        ({"detail": "elsewhere"}, "elsewhere"),
    ],
)
def test_an_error_within_the_stream(error: Any, message: str) -> None:
    with pytest.raises(ServerError, match=message.replace("{", r"\{")):
        read(delta("a"), event({"error": error}))


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_any_json_is_a_chunk_or_a_named_error(value: Any) -> None:
    answer = Answer(RequestRecord(index=0, scheduled=0.0))
    with suppress(BadStream, ServerError):
        answer.take(json.dumps(value).encode("utf-8", "replace"), 0.0)
        answer.finish(True)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_chunk_or_a_named_error(data: bytes) -> None:
    answer = Answer(RequestRecord(index=0, scheduled=0.0))
    with pytest.raises((BadStream, ServerError)):
        answer.take(b"\x00" + data, 0.0)


def test_what_is_shown_is_one_printable_line() -> None:
    assert shown(b"a\n\x1b[31mb\xff") == "a [31mb�"
    assert len(shown("x" * 500)) == 120
    assert message_of({"message": "a\nb"}) == "a b"
