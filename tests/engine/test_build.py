"""Putting the parts together: options to configs, and an engine that speaks with the real detokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from forno.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from forno.engine.build import assemble, engine_config, served_name
from forno.errors import ConfigError
from forno.loader.checkpoint import Checkpoint, TokenizerSource
from forno.request import Request, SamplingParams
from tests.helpers.fake_runner import FakeRunner, unbatched


def test_options_reach_their_config() -> None:
    config = engine_config(model="m", threads=3, block_size=64, max_num_seqs=7)
    assert (config.model.model, config.cpu.threads, config.cache.block_size) == ("m", 3, 64)
    assert config.scheduler == SchedulerConfig(max_num_seqs=7)


@pytest.mark.parametrize(("option", "value"), [("block_sizes", 32), ("block_size", 5), ("max_num_seqs", 0), ("port", 80)])
def test_wrong_options_are_refused(option: str, value: int) -> None:
    with pytest.raises(ConfigError, match=option.replace("_", ".").removesuffix("s")):
        engine_config(**{option: value})


@pytest.mark.parametrize("caching", [True, False])
def test_the_engine_speaks_and_honours_the_configs(caching: bool) -> None:
    letters = [bytes([97 + i % 26]) for i in range(256)]
    pieces = SimpleNamespace(visible=letters, raw=letters, strips_leading_space=False)
    config = EngineConfig(cache=CacheConfig(enable_prefix_caching=caching), scheduler=SchedulerConfig(max_num_seqs=3))
    engine = assemble(FakeRunner(), SimpleNamespace(pieces=pieces), config)
    assert engine.scheduler.config.max_num_seqs == 3
    assert engine.max_model_len == 256
    request = Request("a", tuple(range(20)), SamplingParams(max_tokens=5))
    for _ in range(2):
        engine.add_request(request)
        text = ""
        while engine.has_work:
            text += "".join(output.text for output in engine.step())
        assert text == "".join(letters[t].decode() for t in unbatched(request)[0])
    assert engine.stats().cached_tokens == (19 if caching else 0), "all but the last token"
    assert [r.id for r in engine.recorder.finished()] == ["a", "a"]


@dataclass
class Named:
    name: str = "Its own name"


@pytest.mark.parametrize(
    ("model", "served", "expected"),
    [
        ("smollm2-135m", "", "smollm2-135m"),
        (" SmolLM2-135M ", "", "smollm2-135m"),
        ("/a/file.gguf", "", "Its own name"),
        ("smollm2-135m", "mine", "mine"),
    ],
)
def test_the_served_name(model: str, served: str, expected: str) -> None:
    assert served_name(ModelConfig(model=model, served_model_name=served), Named()) == expected  # type: ignore[arg-type]


def test_what_is_built_holds_no_file() -> None:
    checkpoint = Checkpoint("m", {"a": 1}, {"w": None}, TokenizerSource(json_path="x"), "template")  # type: ignore[dict-item]
    bare = checkpoint.without_data()
    assert (bare.tensors, bare.tokenizer) == ({}, TokenizerSource())
    assert (bare.name, bare.config, bare.chat_template) == ("m", {"a": 1}, "template")
