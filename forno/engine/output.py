"""Tokens to text to ``RequestOutput``: incremental detokenizing, stop strings, counts and times.

Knows no scheduler rule and no socket. One request's failure here ends that request only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from forno.errors import EngineError, FornoError
from forno.request import FinishReason, Request, RequestOutput, RequestTimes, TokenLogprobs
from forno.scheduler import Update


class Detokenizer(Protocol):
    """One request's tokens to text. The pieces, joined, are the text that decoding all tokens at once would give."""

    def add(self, token_ids: Sequence[int]) -> str:
        """New text that further tokens cannot change; may be empty."""

    def flush(self) -> str:
        """What is still held back (an incomplete character), when no token will follow."""


class StopMatcher(Protocol):
    """Watches one request's text for its stop strings."""

    def add(self, text: str) -> tuple[str, str | None]:
        """(text that may be shown, the stop string that ended it or None). Text that may still become part of a stop
        string is held back; after a match everything from the stop string on is dropped."""

    def flush(self) -> str:
        """What is still held back, when no text will follow."""


MakeDetokenizer = Callable[[Request], Detokenizer]
MakeStops = Callable[[tuple[str, ...]], StopMatcher]


class Transcript:
    """What one request has said so far, and what of it may be shown."""

    __slots__ = ("_detokenizer", "_min_tokens", "_stops", "prompt_logprobs", "times")

    def __init__(self, request: Request, detokenizer: Detokenizer | None, stops: StopMatcher | None) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = request.sampling.min_tokens
        self.times = RequestTimes(arrival=request.arrival)
        self.prompt_logprobs: list[TokenLogprobs] | None = [] if request.sampling.prompt_logprobs is not None else None

    def say(self, tokens: tuple[int, ...], total: int, last: bool) -> tuple[str, str | None]:
        """Text to show after ``tokens`` were added as the ``total``-th and before, and the stop string, if one matched.

        ``last``: no token will follow, so nothing is held back.
        """
        if self._detokenizer is None:
            return "", None
        text = self._detokenizer.add(tokens) if tokens else ""
        if last:
            text += self._detokenizer.flush()
        if self._stops is None or total <= self._min_tokens:
            return text, None
        shown, stop = self._stops.add(text)
        if last and stop is None:
            shown += self._stops.flush()
        return shown, stop

    def note_prompt_logprobs(self, position: int, values: tuple[TokenLogprobs, ...]) -> None:
        """Positions from 1 on, in order; those computed again after a preemption are the same and skipped."""
        if self.prompt_logprobs is None:  # given out already
            return
        known = len(self.prompt_logprobs) + 1
        assert position <= known, f"prompt log-probabilities jump from position {known} to {position}"
        self.prompt_logprobs.extend(values[known - position :])

    def take_prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """All of them, the first time; nothing after."""
        taken, self.prompt_logprobs = tuple(self.prompt_logprobs or ()), None
        return taken


class OutputProcessor:
    """Holds a ``Transcript`` per live request.

    Without ``detokenizer`` there is no text and stop strings never match: ids in, ids out.
    """

    def __init__(self, detokenizer: MakeDetokenizer | None = None, stops: MakeStops | None = None) -> None:
        self._make_detokenizer = detokenizer
        self._make_stops = stops
        self._transcripts: dict[str, Transcript] = {}

    def __len__(self) -> int:
        return len(self._transcripts)

    def open(self, request: Request) -> None:
        """Start a request's transcript; raises what the tokenizer raises for its prompt."""
        detokenizer = self._make_detokenizer(request) if self._make_detokenizer else None
        stops = self._make_stops(request.sampling.stop) if self._make_stops and request.sampling.stop else None
        self._transcripts[request.id] = Transcript(request, detokenizer, stops)

    def close(self, id: str) -> None:
        self._transcripts.pop(id, None)

    def collect(self, updates: Iterable[Update]) -> list[RequestOutput]:
        """One output per update that clients should see."""
        outputs = []
        for update in updates:
            transcript = self._transcripts[update.sequence.request.id]
            if update.prompt_logprobs:
                transcript.note_prompt_logprobs(update.prompt_position, update.prompt_logprobs)
            if update.tokens or update.finish_reason is not None:
                outputs.append(self._output(update, transcript))
        return outputs

    def _output(self, update: Update, transcript: Transcript) -> RequestOutput:
        sequence, reason, error = update.sequence, update.finish_reason, update.error
        generated = sequence.num_generated
        stop_reason: int | str | None = None
        try:
            spoken = update.tokens
            if reason is FinishReason.STOP and spoken and spoken[-1] in sequence.stop_ids:
                stop_reason = spoken[-1] if spoken[-1] in sequence.request.sampling.stop_token_ids else None
                spoken = spoken[:-1]
            text, stop = transcript.say(spoken, generated, last=reason is not None)
            if stop is not None:
                reason, stop_reason = FinishReason.STOP, stop
        except Exception as cause:
            text, reason, error = "", FinishReason.ERROR, _named(sequence.request.id, cause)
        if reason is not None or transcript.times.first_token == 0.0:
            finished = update.time if reason is not None else 0.0
            transcript.times = RequestTimes(sequence.request.arrival, sequence.scheduled, sequence.first_token, finished)
        first = transcript.prompt_logprobs is not None
        return RequestOutput(
            id=sequence.request.id,
            text=text,
            token_ids=update.tokens,
            logprobs=update.logprobs,
            prompt_logprobs=transcript.take_prompt_logprobs() if first else (),
            finish_reason=reason,
            stop_reason=stop_reason,
            error=error,
            num_prompt_tokens=sequence.num_prompt,
            num_cached_tokens=sequence.num_cached,
            num_generated_tokens=generated,
            times=transcript.times,
        )


def _named(id: str, cause: Exception) -> FornoError:
    if isinstance(cause, FornoError):
        return cause
    return EngineError(f"turning the tokens of request {id!r} into text failed: {cause!r}")
