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

    def say(self, tokens: tuple[int, ...], total: int, last: bool, silent: int = 0) -> tuple[str, str | None, int]:
        """Text to show after ``tokens`` were added, which made ``total``; the stop string, if one matched; and how many of
        the tokens that took (all, if none did).

        ``last``: no token will follow, so nothing is held back. The last ``silent`` tokens have no text.
        """
        if self._detokenizer is None:
            return "", None, len(tokens)
        spoken = tokens[: len(tokens) - silent]
        if self._stops is None:
            text = self._detokenizer.add(spoken) if spoken else ""
            return text + self._detokenizer.flush() if last else text, None, len(tokens)
        pieces = [self._detokenizer.add((token,)) for token in spoken] + [""] * silent or [""]
        if last:
            pieces[-1] += self._detokenizer.flush()
        shown = ""
        for i, piece in enumerate(pieces, 1):
            used = min(i, len(tokens))
            text, stop = self._stops.add(piece) if total - len(tokens) + used > self._min_tokens else (piece, None)
            shown += text
            if stop is not None:
                return shown, stop, used
        return shown + self._stops.flush() if last else shown, None, len(tokens)

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
        tokens, generated = update.tokens, sequence.num_generated
        stop_reason: int | str | None = None
        try:
            stopped = reason is FinishReason.STOP and bool(tokens) and tokens[-1] in sequence.stop_ids
            if stopped and tokens[-1] in sequence.request.sampling.stop_token_ids:
                stop_reason = tokens[-1]
            text, stop, used = transcript.say(tokens, generated, reason is not None, int(stopped))
            generated -= len(tokens) - used
            tokens = tokens[:used]
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
            token_ids=tokens,
            logprobs=update.logprobs[: len(tokens)],
            prompt_logprobs=transcript.take_prompt_logprobs() if first else (),
            finish_reason=reason,
            stop_reason=stop_reason,
            error=error,
            num_prompt_tokens=sequence.num_prompt,
            num_cached_tokens=sequence.num_cached,
            num_generated_tokens=generated,
            num_draft_tokens=sequence.num_drafted,
            num_accepted_tokens=sequence.num_accepted,
            times=transcript.times,
        )


def _named(id: str, cause: Exception) -> FornoError:
    if isinstance(cause, FornoError):
        return cause
    return EngineError(f"turning the tokens of request {id!r} into text failed: {cause!r}")
