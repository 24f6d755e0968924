"""Token counts, timings and log-probabilities of finished requests, in the API's shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET

from forno.request import RequestOutput, TokenLogprobs
from forno.server import wire
from forno.text import Tokenizer

FLOOR = -9999.0
"""Minus infinity is not JSON: OpenAI's API sends this for a token that cannot occur."""


def usage(last_outputs: Iterable[RequestOutput], prompts: int = 0) -> wire.Usage:
    """Totals over the last output of each choice; choices of one prompt count its tokens once.

    ``prompts`` is the number of choices per prompt.
    """
    outputs = list(last_outputs)
    firsts = outputs[:: max(prompts, 1)]
    prompt = sum(o.num_prompt_tokens for o in firsts)
    cached = sum(o.num_cached_tokens for o in firsts)
    completion = sum(o.num_generated_tokens for o in outputs)
    return wire.Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=wire.PromptTokensDetails(cached_tokens=cached),
    )


def timings(last_outputs: Iterable[RequestOutput]) -> wire.Timings:
    """Timings of a response: from the arrival to the last choice's end, the first token being any choice's first."""
    outputs = list(last_outputs)
    every = [output.times for output in outputs]
    drafted = sum(output.num_draft_tokens for output in outputs)
    arrival = min(t.arrival for t in every)
    scheduled = min(t.scheduled or t.finished for t in every)
    first = min(t.first_token or t.finished for t in every)
    finished = max(t.finished for t in every)
    return wire.Timings(
        queue_ms=_ms(scheduled - arrival),
        ttft_ms=_ms(first - arrival),
        generate_ms=_ms(finished - first),
        total_ms=_ms(finished - arrival),
        draft_n=drafted or UNSET,
        draft_n_accepted=sum(output.num_accepted_tokens for output in outputs) if drafted else UNSET,
    )


def _ms(seconds: float) -> float:
    return round(max(seconds, 0.0) * 1000, 3)


def chat_logprobs(tokenizer: Tokenizer, items: Iterable[TokenLogprobs]) -> wire.ChatLogprobs:
    """The ``logprobs`` object of a chat choice."""
    return wire.ChatLogprobs(
        content=[
            wire.TokenLogprob(
                token=tokenizer.id_to_text(item.token),
                logprob=finite(item.logprob),
                bytes=list(tokenizer.token_bytes(item.token)),
                top_logprobs=[_top(tokenizer, token, value) for token, value in item.top],
            )
            for item in items
        ]
    )


def completion_logprobs(
    tokenizer: Tokenizer, items: Sequence[TokenLogprobs | int], wanted: int, offset: int
) -> wire.CompletionLogprobs:
    """The older endpoint's parallel lists. An int stands for a token without a prediction (an echoed prompt's first)."""
    tokens, values, tops, offsets = [], [], [], []
    for item in items:
        token = item if isinstance(item, int) else item.token
        text = tokenizer.id_to_text(token)
        tokens.append(text)
        offsets.append(offset)
        offset += len(text)
        values.append(None if isinstance(item, int) else finite(item.logprob))
        tops.append(None if isinstance(item, int) else _top_dict(tokenizer, item, wanted))
    return wire.CompletionLogprobs(
        tokens=tokens, token_logprobs=values, top_logprobs=tops if wanted else None, text_offset=offsets
    )


def _top_dict(tokenizer: Tokenizer, item: TokenLogprobs, wanted: int) -> dict[str, float]:
    best = {tokenizer.id_to_text(token): finite(value) for token, value in item.top[:wanted]}
    return best | {tokenizer.id_to_text(item.token): finite(item.logprob)}


def prompt_logprobs(tokenizer: Tokenizer, items: Iterable[TokenLogprobs]) -> wire.PromptLogprobs:
    """vLLM's ``prompt_logprobs``: null for the first position, then token id to log-probability."""
    found: wire.PromptLogprobs = [None]
    for item in items:
        pairs = dict(item.top) | {item.token: item.logprob}
        found.append({str(token): _top(tokenizer, token, value) for token, value in pairs.items()})
    return found


def _top(tokenizer: Tokenizer, token: int, value: float) -> wire.TopLogprob:
    text = tokenizer.id_to_text(token)
    return wire.TopLogprob(token=text, logprob=finite(value), bytes=list(tokenizer.token_bytes(token)))


def finite(value: float) -> float:
    return max(value, FLOOR)
