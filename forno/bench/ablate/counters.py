"""What a server computed meanwhile, from its ``/metrics`` page before and after. It knows forno's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from forno.bench.exposition import samples

_PREFIXES = ("forno", "vllm")
_STEP_SIZES = "iteration_tokens_total_bucket"
_EVERYWHERE = ("engine", "model_name")
"""Labels that every sample has."""


def parse(page: str) -> dict[str, float]:
    """Sample -> value, such as ``step_bytes_total[kv]``; buckets of all histograms but one, and what cannot be read, are left
    out."""
    found: dict[str, float] = {}
    for sample in samples(page):
        own = [text for label, text in sample.labels.items() if label not in _EVERYWHERE]
        prefix, _, name = sample.name.rpartition(":")
        if prefix in _PREFIXES and (name == _STEP_SIZES or not name.endswith(("_bucket", "_created"))):
            found[name + (f"[{','.join(own)}]" if own else "")] = sample.value
    return found


class Work(msgspec.Struct, kw_only=True, frozen=True):
    """What a server did in some time; None where it does not tell. Sums of several times add up with ``+``."""

    requests: float = 0.0
    """That had their first token."""
    steps: float = 0.0
    rows: float = 0.0
    """Tokens computed, of prompts and of answers."""
    decode_steps: float | None = None
    """Steps of no more tokens than there are clients, so without a prompt; None where any number of requests may run."""
    prompt_tokens: float = 0.0
    """Of requests that had their first step."""
    cached_tokens: float = 0.0
    """Of those, found in the prefix cache."""
    output_tokens: float = 0.0
    preemptions: float = 0.0
    draft_tokens: float = 0.0
    """Tokens guessed by speculation."""
    accepted_tokens: float = 0.0
    weight_bytes: float | None = None
    """The least that the steps had to move, by the program's costs; like the next three."""
    kv_bytes: float | None = None
    activation_bytes: float | None = None
    flops: float | None = None
    reserved_slots: float | None = None
    """KV token slots that running requests held, summed over steps."""
    used_slots: float | None = None
    """Of those, slots that held a token."""

    def __add__(self, other: Work) -> Work:
        sums: dict[str, Any] = {f: _sum(getattr(self, f), getattr(other, f)) for f in self.__struct_fields__}
        return Work(**sums)

    @property
    def waste_share(self) -> float | None:
        """Of the reserved KV slots, those that held no token."""
        if not self.reserved_slots or self.used_slots is None:
            return None
        return 1.0 - self.used_slots / self.reserved_slots

    @property
    def rows_per_step(self) -> float:
        return self.rows / self.steps if self.steps else 0.0

    def per_output(self, amount: float | None) -> float | None:
        """So much for each token generated."""
        return None if amount is None or not self.output_tokens else amount / self.output_tokens


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


_NAMES = {
    "requests": "time_to_first_token_seconds_count",
    "steps": "iteration_tokens_total_count",
    "rows": "iteration_tokens_total_sum",
    "prompt_tokens": "prompt_tokens_total",
    "cached_tokens": "prompt_tokens_cached_total",
    "output_tokens": "generation_tokens_total",
    "preemptions": "num_preemptions_total",
    "draft_tokens": "spec_decode_num_draft_tokens_total",
    "accepted_tokens": "spec_decode_num_accepted_tokens_total",
}
_OPTIONAL = {
    "weight_bytes": ("step_bytes_total[weights]",),
    "kv_bytes": ("step_bytes_total[kv]",),
    "activation_bytes": ("step_bytes_total[activations]",),
    "flops": ("step_flops_total[int8]", "step_flops_total[bf16]", "step_flops_total[fp32]"),
    "reserved_slots": ("kv_reserved_slot_steps_total",),
    "used_slots": ("kv_used_slot_steps_total",),
}


def work_between(before: Mapping[str, float], after: Mapping[str, float], clients: int = 0) -> Work:
    """The difference of two readings, while no more than ``clients`` requests ran (0: it is not known how many)."""

    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    told = {field: names for field, names in _OPTIONAL.items() if any(n in after for n in names)}
    counts = {field: grown(name) for field, name in _NAMES.items()}
    sizes = {float(name[len(_STEP_SIZES) + 1 : -1]): grown(name) for name in after if name.startswith(_STEP_SIZES)}
    decodes = next((sizes[bound] for bound in sorted(sizes) if bound >= clients), None) if clients else None
    return Work(**counts, decode_steps=decodes, **{field: sum(map(grown, names)) for field, names in told.items()})
