"""Tokens to text: characters in pieces, stop strings across pieces, and what is shown at the end."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from forno.cache import BlockTable
from forno.engine.output import OutputProcessor
from forno.errors import EngineError
from forno.request import FinishReason, Request, RequestOutput, SamplingParams, TokenLogprobs
from forno.scheduler import Sequence as Seq
from forno.scheduler import Update
from forno.text import StopStrings
from tests.helpers.fake_text import ByteDetokenizer


class Talk:
    """One request whose tokens the test invents."""

    def __init__(self, processor: OutputProcessor | None = None, **sampling) -> None:
        default = OutputProcessor(lambda request: ByteDetokenizer(), StopStrings)
        self.processor = default if processor is None else processor
        self.request = Request("r", (5,), SamplingParams(**{"max_tokens": 1000, **sampling}), arrival=1.0, eos_token_ids=(1,))
        self.sequence = Seq(self.request, 0, (0, 1.0, 0), BlockTable(b""))
        self.sequence.scheduled = 2.0
        self.time = 3.0
        self.processor.open(self.request)

    def say(self, tokens: Sequence[int], reason: FinishReason | None = None, **update) -> RequestOutput:
        self.sequence.tokens += tokens
        self.sequence.first_token = self.sequence.first_token or self.time
        made = Update(self.sequence, self.time, tuple(tokens), finish_reason=reason, **update)
        self.time += 1.0
        [output] = self.processor.collect([made])
        return output


def test_a_character_is_shown_when_it_is_whole() -> None:
    talk = Talk()
    assert [talk.say([byte]).text for byte in "é€".encode()] == ["", "é", "", "", "€"]


def test_what_is_incomplete_is_shown_at_the_end() -> None:
    talk = Talk()
    assert talk.say([0xE2], FinishReason.LENGTH).text == "\ufffd"


def test_a_stop_string_across_pieces_ends_the_request() -> None:
    talk = Talk(stop=("END",))
    outputs = [talk.say(piece.encode()) for piece in ("a E", "N", "x", "E", "ND more")]
    assert [o.text for o in outputs] == ["a ", "", "ENx", "", ""]
    assert [o.finish_reason for o in outputs] == [None] * 4 + [FinishReason.STOP]
    assert outputs[-1].stop_reason == "END"
    assert outputs[-1].times.finished == 7.0


def test_text_held_back_is_shown_when_nothing_follows() -> None:
    talk = Talk(stop=("END",))
    assert talk.say(b"x EN").text == "x "
    assert talk.say([], FinishReason.LENGTH).text == "EN"


def test_stop_strings_count_only_after_min_tokens() -> None:
    talk = Talk(stop=("b",), min_tokens=3)
    assert [talk.say([byte]).text for byte in b"abcab"] == ["a", "b", "c", "a", ""]


def test_the_token_that_stops_has_no_text() -> None:
    talk = Talk(stop_token_ids=(ord("!"),))
    output = talk.say(b"hi!", FinishReason.STOP)
    assert (output.text, output.token_ids, output.stop_reason) == ("hi", tuple(b"hi!"), ord("!"))
    eos = Talk().say([*b"hi", 1], FinishReason.STOP)
    assert (eos.text, eos.stop_reason) == ("hi", None)


def test_counts_and_times() -> None:
    talk = Talk()
    first, last = talk.say(b"ab"), talk.say(b"c", FinishReason.LENGTH)
    assert (first.num_prompt_tokens, first.num_generated_tokens, last.num_generated_tokens) == (1, 2, 3)
    assert (first.times.arrival, first.times.scheduled, first.times.first_token, first.times.finished) == (1.0, 2.0, 3.0, 0.0)
    assert last.times.finished == 4.0


def test_prompt_logprobs_are_given_once_and_without_repeats() -> None:
    talk = Talk(prompt_logprobs=0)
    values = tuple(TokenLogprobs(t, -1.0, 1) for t in range(6))
    quiet = Update(talk.sequence, 1.0, prompt_logprobs=values[:3], prompt_position=1)
    assert talk.processor.collect([quiet]) == [], "a chunk of the prompt alone is no output"
    again = talk.say(b"a", prompt_logprobs=values[1:], prompt_position=2)
    assert again.prompt_logprobs == values
    assert talk.say(b"b", prompt_logprobs=values, prompt_position=1).prompt_logprobs == ()


def test_a_failing_detokenizer_ends_its_request_only() -> None:
    class Broken:
        def add(self, token_ids: Sequence[int]) -> str:
            raise KeyError("token")

        def flush(self) -> str:
            return ""

    output = Talk(OutputProcessor(lambda request: Broken())).say(b"a")
    assert output.finish_reason is FinishReason.ERROR
    assert isinstance(output.error, EngineError)
    assert "'r'" in str(output.error)


def test_without_a_tokenizer_there_are_only_ids() -> None:
    output = Talk(OutputProcessor(), stop=("a",)).say(b"abc")
    assert (output.text, output.token_ids, output.finish_reason) == ("", tuple(b"abc"), None)


@settings(max_examples=100)
@given(st.text("abé€", max_size=12), st.lists(st.text("abé", min_size=1, max_size=3), max_size=2), st.data())
def test_pieces_do_not_matter(text: str, stops: list[str], data: st.DataObject) -> None:
    """Streamed text equals the text of all tokens at once, however they are cut."""

    def run(pieces: list[bytes]) -> tuple[str, object]:
        talk, shown = Talk(stop=tuple(stops)), ""
        for i, piece in enumerate(pieces):
            output = talk.say(piece, FinishReason.LENGTH if i == len(pieces) - 1 else None)
            shown += output.text
            if output.finish_reason is not None:
                return shown, output.stop_reason
        raise AssertionError("the last piece ends the talk")

    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True) if a < b] or [b""]
    assert run(pieces) == run([raw])
