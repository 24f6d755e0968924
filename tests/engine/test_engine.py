"""The loop itself: requests in, outputs out, nothing left behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forno import env
from forno.errors import PromptTooLongError
from forno.request import FinishReason, Request, SamplingParams
from tests.engine.conftest import make_engine
from tests.helpers.fake_runner import FakeRunner, unbatched
from tests.helpers.fake_text import ByteTokenizer


def run(engine) -> dict[str, list]:
    outputs: dict[str, list] = {}
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.id, []).append(output)
        engine.check_integrity()
    return outputs


def request(id: str, text: str = "hello", **sampling) -> Request:
    return Request(id, tuple(ByteTokenizer().encode(text)), SamplingParams(**{"max_tokens": 8, **sampling}))


def test_text_and_ids_are_what_one_alone_would_get() -> None:
    engine = make_engine()
    requests = [request(str(i), "hello" * i) for i in range(1, 6)]
    for r in requests:
        engine.add_request(r)
    outputs = run(engine)
    for r in requests:
        ids = sum((o.token_ids for o in outputs[r.id]), ())
        assert ids == unbatched(r)[0]
        assert "".join(o.text for o in outputs[r.id]) == ByteTokenizer().decode(ids)


def test_a_stop_string_frees_the_request_at_once() -> None:
    engine = make_engine()
    probe = request("probe", max_tokens=30)
    text = ByteTokenizer().decode(unbatched(probe)[0])
    stop = next(c for c in text if c.isascii())
    engine.add_request(replace(probe, id="a", sampling=replace(probe.sampling, stop=(stop,))))
    outputs = run(engine)["a"]
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert outputs[-1].stop_reason == stop
    assert "".join(o.text for o in outputs) == text[: text.index(stop)]
    assert len(outputs) < 30
    assert not engine.runner.requests
    assert engine.scheduler.cache.usage == 0.0


def test_arrival_is_the_engines_unless_given() -> None:
    engine = make_engine()
    before = engine.clock()
    engine.add_request(request("a"))
    engine.add_request(replace(request("b"), arrival=before - 5.0))
    outputs = run(engine)
    assert before <= outputs["a"][0].times.arrival <= outputs["a"][0].times.scheduled <= outputs["a"][0].times.first_token
    assert outputs["b"][0].times.arrival == before - 5.0


def test_a_refused_request_leaves_nothing() -> None:
    class Picky(FakeRunner):
        def admit(self, request: Request) -> int:
            raise ValueError("a token outside the vocabulary")

    engine = make_engine()
    with pytest.raises(PromptTooLongError):
        engine.add_request(request("a", max_tokens=10_000))
    picky = make_engine(Picky())
    with pytest.raises(ValueError, match="vocabulary"):
        picky.add_request(request("a"))
    for each in (engine, picky):
        each.check_integrity()
        assert not each.has_work
        assert not each.runner.requests


def test_stats_add_up() -> None:
    engine = make_engine()
    engine.add_request(request("a", "x" * 20, max_tokens=3))
    run(engine)
    engine.add_request(request("b", "x" * 20, max_tokens=3))
    engine.add_request(request("c"))
    engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (2, 0)
    assert engine.stats().kv_usage > 0
    engine.abort("c")
    run(engine)
    stats = engine.stats()
    assert stats.prompt_tokens == 21 + 21 + 6
    assert (stats.cached_tokens, stats.prefix_cache_hits, stats.prefix_cache_queries) == (21, 21, 48), (
        "c shares its first token"
    )
    assert stats.generation_tokens == 3 + 3 + 1
    assert stats.computed_tokens == engine.runner.computed
    assert stats.steps == len(engine.runner.plans)
    assert stats.step_seconds == pytest.approx(0.01 * stats.steps)
    assert dict(stats.finished) == {"stop": 0, "length": 2, "abort": 1, "error": 0}
    done = engine.collector.drain_finished()
    assert [(d.id, d.reason, d.num_generated_tokens, d.num_cached_tokens) for d in done] == [
        ("a", FinishReason.LENGTH, 3, 0),
        ("c", FinishReason.ABORT, 1, 1),
        ("b", FinishReason.LENGTH, 3, 20),
    ]
    assert all(d.times.arrival <= d.times.scheduled <= d.times.first_token <= d.times.finished for d in done)
    assert engine.collector.drain_finished() == []
    assert sum(s.num_tokens for s in engine.collector.drain_steps()) == stats.computed_tokens


def test_debug_checks_after_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.DEBUG.name, "1")
    engine = make_engine()
    engine.add_request(request("a"))
    engine.step()
    engine.scheduler.cache.pool.references[0] += 1
    with pytest.raises(AssertionError):
        engine.step()
