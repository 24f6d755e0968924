"""transformers' rates: ``generate`` on bfloat16 weights."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM

from benchmarks.peers.inside import rates


def main() -> None:
    chosen = rates.options(__doc__)
    torch.set_num_threads(chosen.threads)
    model = AutoModelForCausalLM.from_pretrained(chosen.model, dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def generate(prompts: list[list[int]], tokens: int) -> None:
        inputs = torch.tensor(prompts)
        lengths = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
        out = model.generate(inputs, attention_mask=torch.ones_like(inputs), **lengths)
        assert out.shape[1] == inputs.shape[1] + tokens, "generate ended early"

    rates.report(generate, chosen)


if __name__ == "__main__":
    main()
