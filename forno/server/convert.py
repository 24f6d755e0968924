"""Wire requests to engine requests: the one place where a client's fields are given their meaning."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from forno.engine.stream import Stream, children
from forno.errors import DrainingError, PromptTooLongError, RequestError
from forno.request import FinishReason, Request, RequestOutput, SamplingParams, TokenConstraint
from forno.server import wire
from forno.server.endpoint import Call
from forno.server.serving import Serving
from forno.text import ConstraintSpec

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default of the older endpoint; chat answers may fill the context."""
BIG_BODY = 16 << 10
"""Bytes of a request above which its template and tokenizer run in a thread: streams must not wait for them."""
MAX_CHOICES = 4096
"""Most answers of one request: prompts times ``n``."""
ConstraintFactory = Callable[[], TokenConstraint]
CLIENT_FIELDS = frozenset(("annotations", "parsed", "refusal"))
"""What OpenAI's client echoes back of an answer."""
T = TypeVar("T")


async def off_loop(elsewhere: bool, function: Callable[..., T], *args: Any) -> T:
    """``function(*args)``, in a thread if it may take long: a thread costs more than a short call does."""
    return await asyncio.to_thread(function, *args) if elsewhere else function(*args)


def encode(serving: Serving, text: str, field: str, add_special_tokens: bool = True) -> list[int]:
    """Token ids. A text that cannot fit is refused without the seconds that encoding megabytes takes."""
    least, limit = serving.tokenizer.least_tokens(text), serving.max_model_len
    if least > limit:
        raise PromptTooLongError(f"the prompt has more than {least} tokens, but the context holds {limit}: shorten it", field)
    return serving.tokenizer.encode(text, add_special_tokens)


def message_dicts(messages: Sequence[wire.Message]) -> list[dict[str, Any]]:
    """Messages as templates expect them: plain dicts without fields that were not sent or mean nothing to a model."""
    return [_message_dict(message) for message in messages]


def _message_dict(message: wire.Message) -> dict[str, Any]:
    sent = {k: v for k, v in msgspec.to_builtins(message).items() if v is not None and k not in CLIENT_FIELDS}
    if message.tool_calls:
        sent["tool_calls"] = [
            {"id": c.id, "type": c.type, "function": {"name": c.function.name, "arguments": c.function.arguments}}
            for c in message.tool_calls
        ]
    return sent


def sampling_params(serving: Serving, body: wire.Sampling, max_tokens: int, logprobs: int | None) -> SamplingParams:
    """``SamplingParams`` of a request; the model's own defaults fill what the client left open."""
    given = {
        name: value
        for name in (
            *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
            *("logit_bias", "seed", "min_tokens", "ignore_eos", "prompt_logprobs"),
        )
        if (value := getattr(body, name)) is not None
    }
    _check_token_ids(serving, body)
    if body.priority and serving.scheduling_policy != "priority":
        raise RequestError(
            "priority has no effect under this server's policy: start it with --scheduling-policy priority", "priority"
        )
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return SamplingParams(
        **{**serving.sampling_defaults, **given},
        max_tokens=max_tokens,
        logprobs=logprobs,
        stop=stop,
        stop_token_ids=tuple(body.stop_token_ids or ()),
    )


def _check_token_ids(serving: Serving, body: wire.Sampling) -> None:
    size = serving.tokenizer.vocab_size
    for field, ids in (("logit_bias", body.logit_bias or ()), ("stop_token_ids", body.stop_token_ids or ())):
        bad = next((i for i in ids if not 0 <= i < size), None)
        if bad is not None:
            raise RequestError(f"{field} names the token {bad}, but the vocabulary has {size} tokens", field)


def is_constrained(body: wire.Sampling) -> bool:
    """Whether ``constraint_of`` has something to compile."""
    return body.structured_outputs is not None or not isinstance(body.response_format, wire.TextFormat | None)


def constraint_of(serving: Serving, body: wire.Sampling) -> ConstraintFactory | None:
    """The constraint that ``response_format`` or ``structured_outputs`` asks for; refused if it cannot be enforced."""
    spec = _spec_of(body)
    return None if spec is None else serving.constraints.compile(spec)


def _spec_of(body: wire.Sampling) -> ConstraintSpec | None:
    found: list[ConstraintSpec] = []
    if isinstance(body.response_format, wire.JsonObjectFormat):
        found.append(ConstraintSpec("json_object"))
    elif isinstance(body.response_format, wire.JsonSchemaFormat):
        found.append(ConstraintSpec("json_schema", body.response_format.json_schema.schema))
    outputs = body.structured_outputs
    if outputs is not None:
        if outputs.json is not None:
            found.append(ConstraintSpec("json_schema", outputs.json))
        if outputs.regex is not None:
            found.append(ConstraintSpec("regex", outputs.regex))
        if outputs.choice is not None:
            found.append(ConstraintSpec("choice", outputs.choice))
        if outputs.grammar is not None:
            found.append(ConstraintSpec("grammar", outputs.grammar))
        if not found:
            raise RequestError("structured_outputs must set one of json, regex, choice, grammar", "structured_outputs")
    if len(found) > 1:
        raise RequestError(
            "a request can have one constraint: response_format or one of structured_outputs", "structured_outputs"
        )
    return found[0] if found else None


def room_for(serving: Serving, prompt: Sequence[int], wanted: int | None, default: int | None = None) -> int:
    """Tokens to generate: what was asked, or what fits. Raises ``PromptTooLongError`` naming both lengths."""
    limit = serving.max_model_len
    room = limit - len(prompt)
    if wanted is None:
        wanted = max(room if default is None else min(default, room), 1)
    if room < wanted:
        raise PromptTooLongError(
            f"the prompt has {len(prompt)} tokens and {wanted} are to be generated, but the context holds {limit}: "
            "shorten the prompt, or ask for fewer tokens",
            "messages" if default is None else "prompt",
        )
    return wanted


def engine_requests(
    serving: Serving,
    body: wire.Sampling,
    call: Call,
    id: str,
    prompt: Sequence[int],
    sampling: SamplingParams,
    constraint: ConstraintFactory | None,
) -> list[Request]:
    """One engine request per choice. Choices share the prompt's cache blocks; choice ``i`` has seed ``seed + i``."""
    now = serving.engine.clock()
    seconds = body.deadline or serving.config.request_timeout or None
    request = Request(
        id=id,
        prompt=tuple(prompt),
        sampling=sampling,
        arrival=now,
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        deadline=None if seconds is None else now + seconds,
        eos_token_ids=serving.tokenizer.eos_token_ids,
        slo_class=serving.metrics.goodput.choose(call.slo_class),
    )
    return children(request, body.n or 1, constraint)


def submit(serving: Serving, call: Call, requests: Sequence[Request]) -> Stream[tuple[int, RequestOutput]]:
    """Start the requests, as ``AsyncEngine.submit_batch`` does, and have the call's times noted in their records."""
    stream = serving.engine.submit_batch(requests)
    if call.visit is not None:
        call.visit.follow([request.id for request in requests])
    return stream


def new_id(prefix: str, body: wire.Sampling, call: Call) -> str:
    """The response's id: the client's ``request_id`` if it sent one."""
    id = f"{prefix}-{body.request_id or uuid.uuid4().hex}"
    if call.visit is not None:
        call.visit.id = id
    return id


def now() -> int:
    """Seconds since the epoch, for ``created``."""
    return int(time.time())


def raise_error(output: RequestOutput) -> None:
    """Raise what ended a request, if an error did: a client must never take a part for the whole.

    A request that nobody here cancelled was aborted by a shutdown that would not wait for it.
    """
    if output.error is not None:
        raise output.error
    if output.finish_reason is FinishReason.ABORT:
        raise DrainingError("the server shut down before the request finished: retry elsewhere")


def finish_reason(output: RequestOutput) -> str | None:
    return None if output.finish_reason is None else output.finish_reason.value
