"""``POST /v1/completions``: prompts as text or token ids, several at once, with echo and log-probabilities."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from forno.errors import RequestError
from forno.request import RequestOutput, SamplingParams, TokenLogprobs
from forno.server import convert, usage, wire
from forno.server.endpoint import Call
from forno.server.limits import App
from forno.server.respond import DONE, ChunkTemplate, Deferred, Events, json
from forno.server.run import Run
from forno.server.serving import Serving


@dataclass(slots=True)
class Prompt:
    """One prompt of the request and the text it stands for, if the response echoes it."""

    ids: list[int]
    echo: str = ""


@dataclass(slots=True)
class Choice:
    """What has come of one choice so far."""

    prompt: Prompt
    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs | int] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    offset: int = 0
    arrived: float = 0.0
    last: RequestOutput | None = None


async def completions(serving: Serving, body: wire.CompletionRequest, call: Call) -> App:
    """Start every choice of every prompt, and return the response that collects or streams them."""
    serving.check_model(body.model)
    id = convert.new_id("cmpl", body, call)
    slow = call.size > convert.BIG_BODY or convert.is_constrained(body)
    prompts, constraint = await convert.off_loop(slow, _prepare, serving, body)
    requests, choices = [], []
    for i, prompt in enumerate(prompts):
        wanted = convert.room_for(serving, prompt.ids, body.max_tokens, convert.COMPLETION_MAX_TOKENS)
        sampling = _sampling(serving, body, wanted)
        name = id if len(prompts) == 1 else f"{id}-p{i}"
        children = convert.engine_requests(serving, body, call, name, prompt.ids, sampling, constraint)
        requests += children
        choices += [Choice(prompt) for _ in children]
    stream = convert.submit(serving, call, requests)
    run = CompletionRun(serving, body, id, choices, stream)
    return Events(run.chunks()) if body.stream else Deferred(run.whole())


def _prepare(serving: Serving, body: wire.CompletionRequest) -> tuple[list[Prompt], convert.ConstraintFactory | None]:
    texts = _split(body.prompt)
    choices = len(texts) * (body.n or 1)
    if choices > convert.MAX_CHOICES:
        raise RequestError(f"prompts times n make {choices} choices; at most {convert.MAX_CHOICES} go in a request", "prompt")
    return [_prompt(serving, body, text) for text in texts], convert.constraint_of(serving, body)


def _split(prompt: Any) -> list[str | list[int]]:
    """The prompts of a request: a text, token ids, or a list of either, but not a mixture."""
    if isinstance(prompt, str):
        return [prompt]
    if all(isinstance(p, int) for p in prompt):
        return [prompt]
    if all(isinstance(p, str) for p in prompt) or all(isinstance(p, list) for p in prompt):
        return list(prompt)
    raise RequestError("prompt must be a text, a list of texts, a list of token ids, or a list of such lists", "prompt")


def _prompt(serving: Serving, body: wire.CompletionRequest, prompt: str | list[int]) -> Prompt:
    ids = convert.encode(serving, prompt, "prompt") if isinstance(prompt, str) else list(prompt)
    if not ids:
        raise RequestError("the prompt is empty: it must hold at least one token", "prompt")
    bad = next((i for i in ids if i >= serving.tokenizer.vocab_size), None)
    if bad is not None:
        raise RequestError(
            f"the prompt holds token {bad}, but the vocabulary has {serving.tokenizer.vocab_size} tokens", "prompt"
        )
    if not body.echo:
        return Prompt(ids)
    return Prompt(ids, prompt if isinstance(prompt, str) else serving.tokenizer.decode(ids, skip_special_tokens=False))


def _sampling(serving: Serving, body: wire.CompletionRequest, wanted: int) -> SamplingParams:
    if body.echo and body.logprobs is not None:  # the echoed prompt's log-probabilities are wanted too
        body = msgspec.structs.replace(body, prompt_logprobs=max(body.logprobs, body.prompt_logprobs or 0))
    if wanted == 0 and body.prompt_logprobs is None and not body.echo:
        raise RequestError("max_tokens of 0 makes sense only with echo or prompt_logprobs", "max_tokens")
    return convert.sampling_params(serving, body, wanted, body.logprobs)


class CompletionRun(Run[wire.CompletionRequest, Choice]):
    """One request's texts in flight."""

    async def whole(self) -> App:
        """Collect everything into one response."""
        async with self.stream:
            async for index, output in self.stream:
                self._take(self.arrived(index, output), output)
        response = wire.Completion(
            id=self.id,
            created=self.created,
            model=self.serving.model,
            choices=[self._choice(i, c) for i, c in enumerate(self.choices)],
            usage=self.usage(),
            timings=self.timings(),
        )
        return json(response)

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Encoded server-sent events."""
        template = ChunkTemplate("text_completion", self.id, self.created, self.serving.model)
        async with self.stream:
            async for index, output in self.stream:
                choice = self.arrived(index, output)
                first = choice.last is None
                self._take(choice, output)
                if first or choice.logprobs or output.finish_reason is not None:
                    yield self.counted(choice, template.choice(self._delta(index, choice, output, first)))
                elif output.text:
                    yield self.counted(choice, template.text(index, output.text))
        yield self.tail(template) + DONE

    def _take(self, choice: Choice, output: RequestOutput) -> None:
        choice.text.append(output.text)
        if choice.last is None:  # the first output has the whole prompt's
            choice.prompt_logprobs = output.prompt_logprobs
            if self.body.echo and self.body.logprobs is not None:
                choice.logprobs += [choice.prompt.ids[0], *output.prompt_logprobs]
        if self.body.logprobs is not None:
            choice.logprobs += output.logprobs
        choice.last = output

    def _choice(self, index: int, choice: Choice) -> wire.CompletionChoice:
        assert choice.last is not None
        return wire.CompletionChoice(
            index=index,
            text=choice.prompt.echo + "".join(choice.text),
            finish_reason=convert.finish_reason(choice.last),
            stop_reason=choice.last.stop_reason,
            logprobs=self._logprobs(choice),
            prompt_logprobs=self._prompt_logprobs(choice),
        )

    def _delta(self, index: int, choice: Choice, output: RequestOutput, first: bool) -> wire.CompletionChoice:
        delta = wire.CompletionChoice(
            index=index,
            text=(choice.prompt.echo if first else "") + output.text,
            finish_reason=convert.finish_reason(output),
            stop_reason=output.stop_reason,
            logprobs=self._logprobs(choice),
            prompt_logprobs=self._prompt_logprobs(choice) if first else msgspec.UNSET,
        )
        if delta.logprobs is not None:
            choice.offset += sum(map(len, delta.logprobs.tokens))
        choice.logprobs.clear()
        return delta

    def _logprobs(self, choice: Choice) -> wire.CompletionLogprobs | None:
        if self.body.logprobs is None:
            return None
        return usage.completion_logprobs(self.serving.tokenizer, choice.logprobs, self.body.logprobs, choice.offset)

    def _prompt_logprobs(self, choice: Choice) -> wire.PromptLogprobs | msgspec.UnsetType:
        if self.body.prompt_logprobs is None:
            return msgspec.UNSET
        return usage.prompt_logprobs(self.serving.tokenizer, choice.prompt_logprobs)
