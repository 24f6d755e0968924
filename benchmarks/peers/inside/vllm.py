"""vLLM's rates, through its ``LLM`` class in one process."""

from __future__ import annotations

from vllm import LLM, SamplingParams

from benchmarks.peers.inside import rates


def main() -> None:
    chosen = rates.options(__doc__, "max-model-len", "max-num-seqs", "max-num-batched-tokens")
    llm = LLM(
        chosen.model,
        dtype="bfloat16",
        max_model_len=chosen.max_model_len,
        max_num_seqs=chosen.max_num_seqs,
        max_num_batched_tokens=chosen.max_num_batched_tokens,
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
