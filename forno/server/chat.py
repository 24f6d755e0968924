"""``POST /v1/chat/completions``: a conversation in, an answer out, whole or streamed, with tool calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from forno.errors import RequestError
from forno.request import RequestOutput, TokenLogprobs
from forno.server import convert, usage, wire
from forno.server.endpoint import Call
from forno.server.limits import App
from forno.server.respond import DONE, ChunkTemplate, Deferred, Events, json
from forno.server.run import Run
from forno.server.serving import Serving
from forno.text import ToolCallParser, tool_constraint, tool_form
from forno.text.tools import ToolCallDelta, ToolForm, describe_tools, supports_tools

TEMPLATE_ARGUMENTS = frozenset(("self", "messages", "tools", "add_generation_prompt"))
"""What a request may not pass to its chat template by name: these are the server's to set."""
MAX_CALLS = 128
"""Most tool calls of one answer that are passed on."""


async def chat(serving: Serving, body: wire.ChatRequest, call: Call) -> App:
    """Start every choice, and return the response that collects or streams them."""
    serving.check_model(body.model)
    id = convert.new_id("chatcmpl", body, call)
    tools = None if body.tool_choice == "none" else msgspec.to_builtins(body.tools or []) or None
    form = tool_form(serving.template.source) if tools else None
    slow = call.size > convert.BIG_BODY or convert.is_constrained(body) or _is_forced(body)
    prompt, constraint = await convert.off_loop(slow, _prepare, serving, body, tools, form)
    sampling = convert.sampling_params(serving, body, _max_tokens(serving, body, prompt), _logprobs(body))
    requests = convert.engine_requests(serving, body, call, id, prompt, sampling, constraint)
    most_calls = 1 if body.parallel_tool_calls is False else MAX_CALLS
    choices = [Choice(_parser(body, tools, form), most_calls) for _ in requests]
    run = ChatRun(serving, body, id, choices, convert.submit(serving, call, requests))
    return Events(run.chunks()) if body.stream else Deferred(run.whole())


def _prepare(
    serving: Serving, body: wire.ChatRequest, tools: list[Any] | None, form: ToolForm | None
) -> tuple[list[int], convert.ConstraintFactory | None]:
    return _prompt(serving, body, tools), _constraint(serving, body, tools, form)


def _max_tokens(serving: Serving, body: wire.ChatRequest, prompt: Sequence[int]) -> int:
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    wanted = getattr(body, name)
    if wanted == 0:
        raise RequestError(f"{name} must be at least 1", name)
    return convert.room_for(serving, prompt, wanted)


def _prompt(serving: Serving, body: wire.ChatRequest, tools: list[Any] | None) -> list[int]:
    messages: Sequence[Any] = convert.message_dicts(body.messages)
    if tools and not supports_tools(serving.template.source):
        messages, shown = describe_tools(messages, tools), None
    else:
        shown = tools
    extra = body.chat_template_kwargs or {}
    if taken := TEMPLATE_ARGUMENTS & extra.keys():
        raise RequestError(f"chat_template_kwargs may not set {', '.join(sorted(taken))}", "chat_template_kwargs")
    text = serving.template.render(messages, shown, add_generation_prompt=True, **extra)
    return convert.encode(serving, text, "messages", add_special_tokens=False)


def _constraint(
    serving: Serving, body: wire.ChatRequest, tools: list[Any] | None, form: ToolForm | None
) -> convert.ConstraintFactory | None:
    """The one constraint of the request. Compiling may take a while: call it off the event loop."""
    constraint = convert.constraint_of(serving, body)
    choice = msgspec.to_builtins(body.tool_choice)
    if not _is_forced(body):
        return constraint
    if not tools or form is None:
        raise RequestError("tool_choice asks for a call, but there are no tools", "tool_choice")
    spec = tool_constraint(form, tools, choice, body.parallel_tool_calls is not False)
    if spec is not None and constraint is not None:
        raise RequestError("a forced tool call and response_format exclude each other", "tool_choice")
    return constraint if spec is None else serving.constraints.compile(spec)


def _parser(body: wire.ChatRequest, tools: list[Any] | None, form: ToolForm | None) -> ToolCallParser | None:
    if not tools or form is None:
        return None
    return ToolCallParser(form, [t["function"]["name"] for t in tools], enforced=_is_forced(body))


def _is_forced(body: wire.ChatRequest) -> bool:
    """Whether ``tool_choice`` leaves the model no choice."""
    return body.tool_choice not in (None, "none", "auto")


def _logprobs(body: wire.ChatRequest) -> int | None:
    if not body.logprobs:
        if body.top_logprobs:
            raise RequestError("top_logprobs needs logprobs to be true", "top_logprobs")
        return None
    return body.top_logprobs or 0


@dataclass(slots=True)
class Choice:
    """What has come of one choice so far."""

    parser: ToolCallParser | None
    most_calls: int
    text: list[str] = field(default_factory=list)
    calls: list[wire.ToolCallOut] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    last: RequestOutput | None = None
    arrived: float = 0.0

    def take(self, output: RequestOutput) -> tuple[str, tuple[ToolCallDelta, ...]]:
        """Split an output's text into content and tool call deltas."""
        if self.last is None:  # the first output has the whole prompt's
            self.prompt_logprobs = output.prompt_logprobs
        self.last = output
        if self.parser is None:
            return output.text, ()
        delta = self.parser.add(output.text)
        content, calls = delta.content, delta.calls
        if output.finish_reason is not None:
            rest = self.parser.flush()
            content, calls = content + rest.content, calls + rest.calls
        return content, tuple(call for call in calls if call.index < self.most_calls)

    def finish_reason(self) -> str | None:
        assert self.last is not None
        reason = convert.finish_reason(self.last)
        return "tool_calls" if reason == "stop" and self.parser is not None and self.parser.called else reason


class ChatRun(Run[wire.ChatRequest, Choice]):
    """One conversation's answers in flight."""

    async def whole(self) -> App:
        """Collect everything into one response."""
        async with self.stream:
            async for index, output in self.stream:
                choice = self.arrived(index, output)
                content, calls = choice.take(output)
                choice.text.append(content)
                choice.logprobs += output.logprobs
                _join(choice.calls, calls)
        response = wire.ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.serving.model,
            choices=[self._choice(i, c) for i, c in enumerate(self.choices)],
            usage=self.usage(),
            timings=self.timings(),
            **self._prompt_logprobs(),
        )
        return json(response)

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Encoded server-sent events."""
        template = ChunkTemplate("chat.completion.chunk", self.id, self.created, self.serving.model)
        async with self.stream:
            async for index, output in self.stream:
                choice = self.arrived(index, output)
                first = choice.last is None
                content, calls = choice.take(output)
                head = template.choice(_role(index), self._prompt_logprobs() if index == 0 else {}) if first else b""
                if calls or output.logprobs or output.finish_reason is not None:
                    yield self.counted(choice, head + template.choice(self._delta(index, choice, output, content, calls)))
                elif content:
                    yield self.counted(choice, head + template.content(index, content))
                elif head:
                    yield self.counted(choice, head)
        yield self.tail(template) + DONE

    def _prompt_logprobs(self) -> dict[str, Any]:
        """The response's field, if it was asked for: all choices have the same prompt."""
        if self.body.prompt_logprobs is None:
            return {}
        return {"prompt_logprobs": usage.prompt_logprobs(self.serving.tokenizer, self.choices[0].prompt_logprobs)}

    def _choice(self, index: int, choice: Choice) -> wire.ChatChoice:
        assert choice.last is not None
        text = "".join(choice.text)
        message = wire.AssistantMessage(content=text if text or not choice.calls else None)
        if choice.calls:
            message.tool_calls = choice.calls
        return wire.ChatChoice(
            index=index,
            message=message,
            finish_reason=choice.finish_reason() or "",
            stop_reason=choice.last.stop_reason,
            logprobs=usage.chat_logprobs(self.serving.tokenizer, choice.logprobs) if self.body.logprobs else None,
        )

    def _delta(
        self, index: int, choice: Choice, output: RequestOutput, content: str, calls: Sequence[ToolCallDelta]
    ) -> dict[str, Any]:
        delta: dict[str, Any] = {"content": content} if content else {}
        if calls:
            delta["tool_calls"] = [_call_delta(c) for c in calls]
        logprobs = usage.chat_logprobs(self.serving.tokenizer, output.logprobs) if self.body.logprobs else None
        reason = None if output.finish_reason is None else choice.finish_reason()
        value = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return value if output.stop_reason is None else value | {"stop_reason": output.stop_reason}


def _role(index: int) -> dict[str, Any]:
    return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}


def _call_delta(delta: ToolCallDelta) -> dict[str, Any]:
    if delta.id is None:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    function = {"name": delta.name, "arguments": delta.arguments}
    return {"index": delta.index, "id": delta.id, "type": "function", "function": function}


def _join(calls: list[wire.ToolCallOut], deltas: Sequence[ToolCallDelta]) -> None:
    """Put streamed deltas together into whole calls: the same parser serves both kinds of response."""
    for delta in deltas:
        if delta.id is not None:
            function = wire.FunctionCallOut(name=delta.name or "", arguments="")
            calls.append(wire.ToolCallOut(id=delta.id, function=function))
        calls[delta.index].function.arguments += delta.arguments
