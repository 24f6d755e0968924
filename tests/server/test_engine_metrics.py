"""The Prometheus names that dashboards and autoscalers of vLLM look for."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from forno.config import SpeculativeConfig
from tests.server.harness import Running, running

GAUGES = ("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc")
COUNTERS = (
    *("prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens", "prompt_tokens_cached"),
    *("generation_tokens", "request_success", "spec_decode_num_drafts", "spec_decode_num_draft_tokens"),
    "spec_decode_num_accepted_tokens",
)
HISTOGRAMS = (
    *("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds"),
    *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds"),
    *("request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens", "request_generation_tokens"),
    *("request_params_max_tokens", "iteration_tokens_total"),
)


def scrape(server: Running) -> dict[str, float]:
    """Every sample by name and, if they tell apart more than the engine, its labels."""
    response = server.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            assert sample.labels["model_name"] == "tiny"
            assert sample.labels["engine"] == "0"
            rest = [v for k, v in sample.labels.items() if k not in ("model_name", "engine")]
            found[sample.name + "".join(f"[{v}]" for v in rest)] = sample.value
    return found


@pytest.mark.parametrize("prefix", ["forno", "vllm"])
def test_the_names(model_path: Path, prefix: str) -> None:
    with running(model_path, metrics_prefix=prefix) as server:
        server.complete(max_tokens=3)
        found = {name.split("[")[0] for name in scrape(server)}
    expected = {f"{prefix}:{name}" for name in GAUGES}
    expected |= {f"{prefix}:{name}_total" for name in COUNTERS}
    expected |= {f"{prefix}:{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum", "count")}
    assert expected <= found
    assert "forno:step_seconds_count" in found  # vLLM has no such metric: it is forno's under either prefix
    assert {name.split(":")[0] for name in found} == {"forno", prefix}


def test_the_numbers(model_path: Path) -> None:
    with running(model_path) as server:
        prompt = [40] * 100
        for stream in (False, True):
            server.complete(prompt=prompt, max_tokens=5, ignore_eos=True, stream=stream)
        server.post("/v1/completions", {"prompt": ""})
        found = scrape(server)
        assert scrape(server) == found  # reading changes nothing
    assert found["forno:prompt_tokens_total"] == 200
    assert found["forno:prompt_tokens_cached_total"] == found["forno:prefix_cache_hits_total"] == 96
    assert found["forno:generation_tokens_total"] == 10
    assert found["forno:request_success_total[length]"] == 2
    assert found["forno:request_success_total[stop]"] == 0
    assert found["forno:time_to_first_token_seconds_count"] == found["forno:e2e_request_latency_seconds_count"] == 2
    assert found["forno:inter_token_latency_seconds_count"] == 8
    assert found["forno:request_generation_tokens_bucket[5.0]"] == 2
    assert found["forno:request_generation_tokens_bucket[2.0]"] == 0
    assert found["forno:request_prefill_kv_computed_tokens_sum"] == 104
    assert found["forno:iteration_tokens_total_sum"] == 100 + 4 + 4 + 4
    assert found["forno:admission_rejections_total[RequestError]"] == 1
    assert found["forno:num_requests_running"] == found["forno:kv_cache_usage_perc"] == 0
    assert found["forno:engine_healthy"] == 1


def test_guessed_tokens(model_path: Path) -> None:
    """Streamed, whole, and without guesses, an answer is the same; what was guessed is reported."""
    asked = {"prompt": [40, 41, 42] * 5, "max_tokens": 60, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    with running(model_path) as server:
        plain = server.complete(**asked)
    with running(model_path, speculative=SpeculativeConfig(speculative="ngram")) as server:
        whole = server.complete(**asked)
        streamed = server.complete(**asked, stream=True, stream_options={"include_usage": True})
        found = scrape(server)
    for answer in (whole, streamed):
        assert answer["choices"][0]["text"] == plain["choices"][0]["text"]
        assert answer["choices"][0]["logprobs"] == plain["choices"][0]["logprobs"]
        assert answer["usage"]["completion_tokens"] == 60
    assert "draft_n" not in plain["timings"]
    drafted, accepted = (sum(a["timings"][name] for a in (whole, streamed)) for name in ("draft_n", "draft_n_accepted"))
    assert found["forno:spec_decode_num_draft_tokens_total"] == drafted > 0
    assert found["forno:spec_decode_num_accepted_tokens_total"] == accepted > 0
    by_position = [found[f"forno:spec_decode_num_accepted_tokens_per_pos_total[{i}]"] for i in range(8)]
    assert sum(by_position) == accepted
    assert by_position == sorted(by_position, reverse=True)
    assert found["forno:spec_decode_num_drafts_total"] >= by_position[0]
