"""OpenVINO GenAI's rates, through its ``ContinuousBatchingPipeline``."""

from __future__ import annotations

import numpy as np
import openvino
import openvino_genai as genai

from benchmarks.peers.inside import rates

CACHE_GB = 2
"""Room for 64 sequences of some 200 tokens many times over; the pages are touched only when used."""
BATCHED_TOKENS = 8192
"""Tokens of a step at most: the prompts of a whole batch at once."""
ACTIVATION_GROUP = 64
"""Activations that share a scale: a fifth faster in prefill than the default here."""


def main() -> None:
    chosen = rates.options(__doc__)
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GB
    scheduler.max_num_batched_tokens = BATCHED_TOKENS
    scheduler.max_num_seqs = max(chosen.batches, default=1)
    scheduler.enable_prefix_caching = False
    properties = {"INFERENCE_NUM_THREADS": chosen.threads, "DYNAMIC_QUANTIZATION_GROUP_SIZE": ACTIVATION_GROUP}
    pipeline = genai.ContinuousBatchingPipeline(chosen.model, scheduler, "CPU", properties)

    def generate(prompts: list[list[int]], tokens: int) -> None:
        config = genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False)
        inputs = [openvino.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        for result in pipeline.generate(inputs, [config] * len(inputs)):
            assert len(result.m_generation_ids[0]) == tokens, "the pipeline ended an answer early"

    rates.report(generate, chosen)


if __name__ == "__main__":
    main()
