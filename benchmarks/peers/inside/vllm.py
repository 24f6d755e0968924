"""vLLM's rates, through its ``LLM`` class in one process."""

from __future__ import annotations

from vllm import LLM, SamplingParams

from benchmarks.peers.inside import rates

MAX_LEN = 1024
BATCHED_TOKENS = 8192


def main() -> None:
    chosen = rates.options(__doc__)
    llm = LLM(
        chosen.model,
        dtype="bfloat16",
        max_model_len=MAX_LEN,
        max_num_seqs=max(chosen.batches, default=1),
        max_num_batched_tokens=BATCHED_TOKENS,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        disable_log_stats=True,
    )

    def generate(prompts: list[list[int]], tokens: int) -> None:
        sampling = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False)
        for answer in llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False):
            assert len(answer.outputs[0].token_ids) == tokens, "vLLM ended an answer early"

    rates.report(generate, chosen)


if __name__ == "__main__":
    main()
