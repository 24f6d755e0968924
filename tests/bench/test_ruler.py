"""The ruler, against a server whose tokens are pieces of words."""

from __future__ import annotations

import random
import statistics

import pytest

from forno.bench import ruler
from forno.bench.corpus import Corpus
from forno.bench.ruler import Ruler
from forno.errors import ConfigError

TEMPLATE = 23


async def pieces(text: str) -> int:
    """Tokens of up to three letters, and a template's."""
    return TEMPLATE + sum(-(-len(word) // 3) for word in text.split())


async def test_prompts_have_the_wanted_tokens_on_average() -> None:
    corpus = Corpus.load()
    found = await ruler.measure(pieces, corpus)
    assert found.template_tokens == pytest.approx(TEMPLATE, abs=3)
    rng = random.Random(5)
    for wanted in (128, 512, 2048):
        counts = [await pieces(corpus.draw(rng, found.prompt_words(wanted))) for _ in range(300)]
        assert statistics.fmean(counts) == pytest.approx(wanted, rel=0.02)


async def test_counts_that_do_not_grow_are_refused() -> None:
    async def constant(text: str) -> int:
        return 7

    with pytest.raises(ConfigError, match="cannot be used"):
        await ruler.measure(constant, Corpus.load(), pieces=4)


def test_a_prompt_has_a_word() -> None:
    found = Ruler(2.0, 30.0)
    assert (found.prompt_words(10), found.words(0), found.words(8), found.prompt_words(40)) == (1, 1, 4, 5)
    assert found.tokens(4) == 8
