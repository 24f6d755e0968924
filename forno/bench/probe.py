"""What a server is and takes, asked before any load: its model, its version, which fields it refuses. It knows HTTP only.

One short request as the load will send it tells a wrong URL, key or model at once, in one line, instead of a run of failures.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from forno.bench.answer import MOST_TOKENS, message_of, shown
from forno.bench.ask import HINT
from forno.bench.client import Target, described, open_client, read_some
from forno.bench.records import RequestRecord
from forno.errors import ConfigError

if TYPE_CHECKING:
    import aiohttp

    from forno.bench.workload import Call

TIMEOUT = 30.0
MAX_BODY = 4 << 20
"""Bytes of an answer that are read: no list of models has more."""
OPTIONAL = ("stream_options", "ignore_eos", "cache_salt")
"""Fields that a load is poorer without, but possible."""


async def find_model(session: aiohttp.ClientSession, url: str) -> str:
    """The one model that the server serves. Raises ``ConfigError`` if there are several, or it does not say."""
    status, body = await _fetch(session, "GET", url + "/v1/models")
    listed = body.get("data") if isinstance(body, dict) else None
    models = [m.get("id") for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []
    names = [name for name in models if isinstance(name, str)]
    if status == 404:
        raise ConfigError(
            f"there is no OpenAI API at {url} ({url}/v1/models: 404): check --url, or name the model with --model"
        )
    if len(names) != 1:
        said = f"{status} {message_of(body)}" if status != HTTPStatus.OK else "no list of models"
        why = f"serves {shown(', '.join(names))}" if names else f"does not say which model it serves ({url}/v1/models: {said})"
        raise ConfigError(f"the server {why}: name one with --model")
    return names[0]


async def describe(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """What the server says of itself; empty if nothing."""
    status, body = await _fetch(session, "GET", url + "/version", required=False)
    return body if status == 200 and isinstance(body, dict) else {}


async def settle(target: Target, call: Call) -> tuple[Target, list[str]]:
    """The target as this server takes it, and what a reader must know of the difference.

    Sends ``call``. Raises ``ConfigError`` if it fails for another reason than a field that the load can do without.
    """
    problems: list[str] = []
    for _ in range(1 + len(OPTIONAL)):
        record = await _try(target, call)
        refused = _refused(record, target)
        if refused is None:
            break
        target = replace(target, include_usage=False) if refused == "stream_options" else _without(target, refused)
        problems.append(f"the server refuses {refused}: {record.error}")
    if record.error is not None and record.error_kind != "empty":
        raise ConfigError(f"{target.url} does not answer ({record.error_kind}): {record.error}")
    told = record.prompt_tokens > 0
    if not told:
        problems.append("the server sends no usage: chunks are counted as tokens, and prompt tokens are not known")
    return replace(target, usage_promised=told), problems


async def _try(target: Target, call: Call) -> RequestRecord:
    record = RequestRecord(index=0, scheduled=0.0)
    async with open_client(replace(target, usage_promised=False), time.perf_counter) as client:
        await client.ask(call, record)
    return record


def _refused(record: RequestRecord, target: Target) -> str | None:
    """The optional field that a refusal names."""
    if record.error_kind != "status" or record.error is None or record.error[:3] not in ("400", "422"):
        return None
    sent = {*target.fields, *(["stream_options"] if target.include_usage else [])}
    return next((name for name in OPTIONAL if name in sent and name in record.error), None)


def _without(target: Target, name: str) -> Target:
    return replace(target, fields={k: v for k, v in target.fields.items() if k != name})


def counter(session: aiohttp.ClientSession, target: Target) -> Callable[[str], Awaitable[int]]:
    """A function that counts the prompt tokens of a request whose only message is a text, by the server's tokenizer.

    It asks ``/tokenize`` where the server has that (forno, vLLM), else the usage of an answer of one token. Raises
    ``ConfigError`` where neither tells.
    """
    tokenizes = True

    def prompt(text: str) -> dict[str, Any]:
        return {"prompt": text} if target.completions else {"messages": [{"role": "user", "content": text}]}

    async def count(text: str) -> int:
        nonlocal tokenizes
        body = {"model": target.model, **prompt(text)}
        if tokenizes:
            status, said = await _fetch(session, "POST", target.url + "/tokenize", body, required=False)
            if status == 200 and isinstance(said, dict) and type(said.get("count")) is int:
                return _believable(said["count"])
            tokenizes = False
        path = "/v1/completions" if target.completions else "/v1/chat/completions"
        status, said = await _fetch(session, "POST", target.url + path, {**body, "max_tokens": 1})
        usage = said.get("usage") if isinstance(said, dict) else None
        if status != 200 or not isinstance(usage, dict) or type(usage.get("prompt_tokens")) is not int:
            raise ConfigError(f"the server does not tell how many tokens a prompt has ({status}): {message_of(said)}")
        return _believable(usage["prompt_tokens"])

    return count


def _believable(count: int) -> int:
    """Raises ``ConfigError`` for a count that no text has."""
    if not 0 <= count <= MOST_TOKENS:
        raise ConfigError(f"the server counts {shown(f'{count:,}')} tokens in a short text: its counts cannot be used")
    return count


async def _fetch(
    session: aiohttp.ClientSession, method: str, url: str, body: Any = None, required: bool = True
) -> tuple[int, Any]:
    """Status and decoded JSON (or the text) of one exchange; (0, reason) if it fails and is not ``required``."""
    import aiohttp

    data = None if body is None else msgspec.json.encode(body)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT)
    try:
        async with session.request(method, url, data=data, timeout=timeout, allow_redirects=False) as response:
            raw = await read_some(response.content, MAX_BODY)
            if where := response.headers.get("location"):
                return response.status, f"redirects to {shown(where)}"
            try:
                return response.status, msgspec.json.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return response.status, shown(raw)
    except Exception as error:  # whatever a server does: a reason, or an error that is said
        reason = f"it took longer than {TIMEOUT:g} s" if isinstance(error, TimeoutError) else described(error)[1]
        if required:
            raise ConfigError(f"no answer from {url}: {reason}; {HINT}") from error
        return 0, reason
