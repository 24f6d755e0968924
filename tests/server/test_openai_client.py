"""The official ``openai`` package as a client: what it sends is taken, what it reads is there, errors are its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from forno.config import SchedulerConfig
from tests.server.harness import CLOCK, LONG, USER, WEATHER, Running, eventually, running

SAYS = {"structured_outputs": {"choice": ["well said"]}}
FORM = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["tiny"]


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=USER,  # type: ignore[arg-type]
        max_completion_tokens=8,
        seed=1,
        temperature=0.5,
        top_p=0.9,
        n=2,
        stop=["zzz"],
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={"70": 1},
        user="me",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        response_format={"type": "text"},
        extra_body={"top_k": 20, "min_p": 0.01, "repetition_penalty": 1.1, "ignore_eos": True},
    )
    assert len(answer.choices) == 2
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    assert answer.usage.prompt_tokens_details is not None
    assert answer.choices[0].finish_reason == "length"


def test_chat_streamed(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": USER, "max_tokens": 12, "seed": 3}
    whole = client.chat.completions.create(**options)
    text, usage = "", None
    for chunk in client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        text += "".join(c.delta.content or "" for c in chunk.choices)
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content
    assert usage is not None
    assert usage.total_tokens == whole.usage.total_tokens


def test_the_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="tiny", messages=USER, extra_body=SAYS) as stream:  # type: ignore[arg-type]
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == "well said"


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=USER,  # type: ignore[arg-type]
        max_tokens=3,
        logprobs=True,
        top_logprobs=2,
        extra_body={"ignore_eos": True},
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [len(t.top_logprobs) for t in logprobs.content] == [2, 2, 2]


@pytest.mark.parametrize("stream", [False, True])
def test_tools_and_the_conversation_after(client: openai.OpenAI, stream: bool) -> None:
    """The answer is put back into the conversation as the client made it, and the call is answered."""
    options: dict[str, Any] = {"model": "tiny", "messages": USER, "tools": [WEATHER, CLOCK], "seed": 1}
    options["tool_choice"] = {"type": "function", "function": {"name": "get_weather"}}
    if stream:
        with client.chat.completions.stream(**options) as events:
            message = events.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.create(**options).choices[0].message
    assert message.tool_calls is not None
    [call] = message.tool_calls
    assert call.type == "function"
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    for told in (message, message.model_dump(), message.model_dump(exclude_none=True)):
        again = client.chat.completions.create(
            model="tiny",
            messages=[*USER, told, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}],  # type: ignore[list-item]
            tools=[WEATHER, CLOCK],  # type: ignore[list-item]
            max_tokens=2,
        )
        assert again.choices[0].message.role == "assistant"


def test_a_call_the_model_chose(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=USER,  # type: ignore[arg-type]
        tools=[WEATHER],  # type: ignore[list-item]
        extra_body={"structured_outputs": {"choice": [FORM]}},
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    [call] = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"city": "Rome", "days": 2}


class Weather(BaseModel):
    city: Literal["Rome", "Oslo"]
    sunny: bool


@pytest.mark.filterwarnings("ignore:Pydantic serializer")  # the client warns of its own field
def test_a_pydantic_model_as_format(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model="tiny", messages=USER, response_format=Weather, seed=5)  # type: ignore[arg-type]
    message = answer.choices[0].message
    assert isinstance(message.parsed, Weather)
    again = client.chat.completions.create(model="tiny", messages=[*USER, message, *USER], max_tokens=1)  # type: ignore[list-item]
    assert again.choices


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=["the", "in"], max_tokens=4, echo=True, logprobs=1, seed=1)
    assert [c.text[:2] for c in answer.choices] == ["th", "in"]
    assert answer.choices[0].logprobs is not None
    streamed = client.completions.create(model="tiny", prompt="the", max_tokens=4, seed=1, stream=True)
    assert "".join(c.text for chunk in streamed for c in chunk.choices) == answer.choices[0].text[3:]


async def test_the_asynchronous_client(server: Running) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        stream = await client.chat.completions.create(model="tiny", messages=USER, max_tokens=5, stream=True)  # type: ignore
        assert [chunk async for chunk in stream][-1].choices[0].finish_reason is not None
        endless = await client.chat.completions.create(model="tiny", messages=USER, stream=True, extra_body=LONG)  # type: ignore
        async for _ in endless:
            break
        await endless.close()


def test_errors_are_the_client_s_own(client: openai.OpenAI, server: Running) -> None:
    def ask(**options: Any) -> Any:
        return client.chat.completions.create(**{"model": "tiny", "messages": USER, "max_tokens": 1, **options})

    with pytest.raises(openai.BadRequestError) as bad:
        ask(temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as unknown:
        ask(extra_body={"best_of": 2})
    assert unknown.value.param == "best_of"
    with pytest.raises(openai.BadRequestError) as long:
        ask(messages=[{"role": "user", "content": "a" * 100_000}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as missing:
        ask(model="gpt-5")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.APIStatusError) as late:
        ask(max_tokens=16000, extra_body={"deadline": 1e-4, "ignore_eos": True})
    assert late.value.status_code == 408


def test_an_error_inside_a_stream_is_raised(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny",
        messages=USER,  # type: ignore[arg-type]
        stream=True,
        extra_body={**LONG, "deadline": 0.3},
    )
    with pytest.raises(openai.APIError) as error:
        list(stream)
    assert error.value.code == "deadline_exceeded"


def test_a_wrong_key_and_a_full_queue(model_path: Path) -> None:
    scheduler = SchedulerConfig(max_num_seqs=1, max_num_queued_reqs=1)
    with running(model_path, scheduler, keys=(b"secret",)) as server:
        wrong = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
        with wrong, pytest.raises(openai.AuthenticationError):
            wrong.models.list()
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as client:
            with pytest.raises(openai.RateLimitError) as full:
                client.completions.create(model="tiny", prompt=["a", "b", "c", "d"])
            assert full.value.response.headers["retry-after"] == "1"
            with server.streaming(**LONG, headers={"authorization": "Bearer secret"}):
                server.terminate()
                eventually(lambda: server.serving.engine.draining)
                with pytest.raises(openai.InternalServerError) as draining:
                    client.completions.create(model="tiny", prompt="a", max_tokens=1)
            assert draining.value.status_code == 503
