"""Which cache an engine gets, and what is reported of it."""

from __future__ import annotations

import pytest

from forno.cache import ContiguousCache, KvCache, Miss
from forno.config import CacheConfig
from forno.engine.build import kv_cache
from forno.engine.cache_report import cache_report
from forno.errors import ConfigError
from tests.helpers.fake_runner import FakeRunner


def test_reservation_is_a_choice_of_cache() -> None:
    runner = FakeRunner(8, 4)
    paged = kv_cache(CacheConfig(), runner)
    assert (type(paged), paged.enable_prefix_caching, paged.num_blocks, paged.block_size) == (KvCache, True, 8, 4)
    assert not kv_cache(CacheConfig(enable_prefix_caching=False), runner).enable_prefix_caching
    whole = kv_cache(CacheConfig(kv_reservation="contiguous"), runner)
    assert isinstance(whole, ContiguousCache)
    assert (whole.enable_prefix_caching, whole.open(longest=5).reserve) == (False, runner.max_model_len)
    assert kv_cache(CacheConfig(kv_reservation="contiguous-as-asked"), runner).open(longest=5).reserve == 5
    with pytest.raises(ConfigError, match="--kv-reservation must be one of paged, contiguous, contiguous-as-asked"):
        CacheConfig(kv_reservation="some")


def test_a_report_of_a_cache_without_prefixes_has_no_curve() -> None:
    cache = KvCache(8, 4, enable_prefix_caching=False)
    table, prompt = cache.open(), (1, 2, 3)
    cache.count(table, cache.explain(table, prompt, cache.match(table, prompt)), prompt)
    report = cache_report(cache)
    assert (report.sizes, report.followed_share, report.queried_tokens) == ((), 0.0, 0)
    assert {reason for reason, count in report.lookups.items() if count} == {Miss.DISABLED.value}
    assert report.missed_tokens["disabled"] == 3
