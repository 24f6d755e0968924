"""``LLM``: text in, text out, without a server. A thin loop over ``Engine``; knows no thread and no event loop."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from forno.config import DEFAULT_MODEL
from forno.engine.build import build_engine, engine_config
from forno.engine.engine import Engine
from forno.errors import QueueFullError, RequestError
from forno.request import FinishReason, Request, RequestOutput, RequestTimes, SamplingParams, TokenLogprobs

if TYPE_CHECKING:
    from forno.text import ChatTemplate, Tokenizer

Prompt: TypeAlias = str | Sequence[int]
DEFAULT_SAMPLING = SamplingParams()
CHAT_SAMPLING = SamplingParams(max_tokens=256)
Message: TypeAlias = Mapping[str, Any]


@dataclass(slots=True)
class Completion:
    """The whole answer to one prompt."""

    prompt: Prompt
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    times: RequestTimes = field(default_factory=RequestTimes)

    def add(self, output: RequestOutput) -> None:
        """Take in what one step added."""
        self.text += output.text
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self.prompt_logprobs += output.prompt_logprobs
        self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
        self.num_prompt_tokens, self.num_cached_tokens = output.num_prompt_tokens, output.num_cached_tokens
        self.times = output.times


class LLM:
    """A model, loaded and ready. ``options`` are the fields of the configs in ``forno.config``, by name.

    Raises ``ConfigError`` for an unknown option or a wrong value, ``ModelError`` if the model cannot be loaded.
    """

    def __init__(self, model: str = DEFAULT_MODEL, **options: Any) -> None:
        self.config = engine_config(model=model, **options)
        built = build_engine(self.config)
        self.engine: Engine = built.engine
        self.tokenizer: Tokenizer = built.tokenizer
        self.checkpoint = built.checkpoint
        self._ids = count()
        self._template: ChatTemplate | None = None

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] = DEFAULT_SAMPLING,
    ) -> list[Completion]:
        """One completion per prompt, in order. A prompt is a text or a list of token ids; ``sampling`` is for all of them
        or one each.

        Raises ``PromptTooLongError`` or another ``RequestError`` before anything is computed; if a request fails later,
        its error, after the others have been cancelled.
        """
        listed = _listed(prompts)
        if isinstance(sampling, SamplingParams):
            sampling = [sampling] * len(listed)
        if len(sampling) != len(listed):
            raise RequestError(f"{len(listed)} prompts but {len(sampling)} sampling parameters", "sampling")
        requests = [self._request(prompt, params) for prompt, params in zip(listed, sampling, strict=True)]
        completions = {request.id: Completion(prompt) for request, prompt in zip(requests, listed, strict=True)}
        for request in requests:
            self.engine.scheduler.admission.check_size(request)
        self._run(requests, completions)
        return list(completions.values())

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling: SamplingParams | Sequence[SamplingParams] = CHAT_SAMPLING,
        **template: Any,
    ) -> list[Completion]:
        """The model's answer to one conversation, or to each of several. ``template`` reaches the chat template.

        Raises ``TemplateError``, ``ConfigError`` for a template file that cannot be read, and what ``generate`` raises.
        """
        several = bool(messages) and not isinstance(messages[0], Mapping)
        conversations: Any = messages if several else [messages]
        if self._template is None:
            from forno.text import load_chat_template, read_template

            override = read_template(self.config.model.chat_template)
            self._template = load_chat_template(self.checkpoint, self.tokenizer, override)
        texts = [self._template.render(conversation, **template) for conversation in conversations]
        return self.generate([self.tokenizer.encode(text, add_special_tokens=False) for text in texts], sampling)

    def _request(self, prompt: Prompt, sampling: SamplingParams) -> Request:
        ids = self.tokenizer.encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt
        return Request(
            id=f"offline-{next(self._ids)}",
            prompt=tuple(ids),
            sampling=sampling,
            arrival=self.engine.clock(),
            eos_token_ids=tuple(self.tokenizer.eos_token_ids),
        )

    def _run(self, requests: Sequence[Request], completions: Mapping[str, Completion]) -> None:
        """Feed the engine as its queue allows, and step it until everything is done."""
        waiting = list(reversed(requests))
        try:
            while waiting or self.engine.has_work:
                self._feed(waiting)
                if delay := self.engine.idle_for():
                    time.sleep(delay)
                for output in self.engine.step():
                    if output.error is not None:
                        raise output.error
                    completions[output.id].add(output)
        except BaseException:
            for request in requests:
                self.engine.abort(request.id)
            while self.engine.has_work:
                self.engine.step()
            raise

    def _feed(self, waiting: list[Request]) -> None:
        """Give the engine what its queue has room for, taken from the end of ``waiting``."""
        while waiting:
            try:
                self.engine.add_request(waiting[-1])
            except QueueFullError:
                return
            waiting.pop()


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list."""
    if isinstance(prompts, str):
        return [prompts]
    items: list[Any] = list(prompts)
    if items and all(isinstance(item, int) for item in items):
        return [items]
    return items
