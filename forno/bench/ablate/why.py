"""Why an arm moved what it moved, in one sentence: computed from what its steps did and what its program costs.

Every number is of this run or of this program; a mechanism that this workload does not exercise is said to be idle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from forno.bench.ablate.counters import Work
from forno.bench.ablate.facts import BATCH, CONTEXT, PROMPT, Facts
from forno.bench.numbers import percent, quantity, shown

IDLE_SHARE = 0.01
"""Of prompt tokens: a prefix cache that finds less has nothing to say here."""


@dataclass(frozen=True, slots=True)
class Side:
    """One arm, or the baseline."""

    work: Work
    facts: Facts
    running: float | None = None
    """Requests that ran at a time, on average."""

    @property
    def weight_reads(self) -> float:
        """Times that all weights were read for 1,000 output tokens."""
        return 1000 * self.work.steps / self.work.output_tokens if self.work.output_tokens else 0.0

    @property
    def weights_per_output(self) -> float:
        """Bytes of weights read for each output token."""
        told = self.work.per_output(self.work.weight_bytes)
        return self.weight_reads / 1000 * self.facts.decode.weight_bytes if told is None else told

    @property
    def computed_prompt(self) -> float:
        """Tokens of a prompt that were not found in the cache, on average."""
        work = self.work
        return (work.prompt_tokens - work.cached_tokens) / work.requests if work.requests else 0.0

    @property
    def prompt_steps(self) -> float | None:
        """Share of the steps that computed prompt tokens."""
        work = self.work
        return None if work.decode_steps is None or not work.steps else 1 - work.decode_steps / work.steps

    @property
    def flops_per_token(self) -> float:
        """Of a prompt's token."""
        return self.facts.prompt.flops / PROMPT


def reason(technique: str, base: Side, arm: Side) -> str:
    """The sentence for an arm of that technique."""
    return _REASONS[technique](base, arm)


def _reads(base: Side, arm: Side) -> str:
    return (
        f"the {quantity(arm.facts.decode.weight_bytes)} of weights were read {shown(arm.weight_reads)} times for 1,000 output "
        f"tokens instead of {shown(base.weight_reads)} ({quantity(arm.weights_per_output)} per token instead of "
        f"{quantity(base.weights_per_output)})"
    )


def _here(base: Side, arm: Side, kind: str, noun: str) -> str:
    """What this run moved of one kind."""
    here, there = (side.work.per_output(getattr(side.work, kind)) for side in (arm, base))
    if here is None or there is None:
        return ""
    return f". Here, each output token took {quantity(here)} of {noun} instead of {quantity(there)}"


def _batching(base: Side, arm: Side) -> str:
    here, there = arm.work.rows_per_step, base.work.rows_per_step
    if here < 0.97 * there:
        why = "seats whose answer has ended stay empty until the batch ends"
    elif here > 1.03 * there:
        why = "waiting for a batch fills its steps"
    else:
        why = "the answers end together, so the seats stay full anyway"
    return f"A step computed {shown(here)} tokens instead of {shown(there)}, for {why}; {_reads(base, arm)}."


def _chunking(base: Side, arm: Side) -> str:
    prompt, here, there = arm.computed_prompt, arm.facts.budget, base.facts.budget
    steps = [max(1, ceil(prompt / budget)) for budget in (here, there)]
    weights = arm.facts.decode.weight_bytes
    times = "times" if steps[0] > 1 else "time"
    flops = [quantity(min(budget, max(prompt, 1.0) * BATCH) * arm.flops_per_token, "FLOP") for budget in (here, there)]
    return (
        f"A prompt of {shown(prompt)} uncached tokens reads the {quantity(weights)} of weights {steps[0]} {times} in steps of "
        f"at most {here:,} tokens instead of {steps[1]} at {there:,}; a full step keeps the decodes beside it waiting for "
        f"{flops[0]} instead of {flops[1]}. {_mixed(base, arm)}, {_reads(base, arm)}."
    )


def _mixed(base: Side, arm: Side) -> str:
    """How many of the steps made decodes wait for prompts."""
    shares = [side.prompt_steps for side in (arm, base)]
    if shares[0] is None or shares[1] is None:
        return "In all"
    return f"{percent(shares[0])} of the steps held prompt tokens instead of {percent(shares[1])}; in all"


def _prefix(base: Side, arm: Side) -> str:
    work = base.work
    share = work.cached_tokens / work.prompt_tokens if work.prompt_tokens else 0.0
    if share < IDLE_SHARE:
        return f"The cache found {percent(share)} of the prompts' tokens here: there was nothing to lose."
    cached = work.cached_tokens / work.requests if work.requests else 0.0
    return (
        f"The cache found {percent(share)} of the prompts' tokens; without it a prompt computes {shown(arm.computed_prompt)} "
        f"tokens instead of {shown(base.computed_prompt)}, {quantity(cached * base.flops_per_token, 'FLOP')} more, where each "
        f"of its answer's tokens takes {quantity(base.facts.decode.flops / BATCH, 'FLOP')}."
    )


def _fusion(base: Side, arm: Side) -> str:
    here, there = arm.facts, base.facts
    prompt = f"{quantity(here.prompt.activation_bytes)} instead of {quantity(there.prompt.activation_bytes)}"
    share = here.decode.bytes / there.decode.bytes - 1
    work = here.prompt.flops / there.prompt.flops - 1
    flops = "are the same" if abs(work) < 5e-4 else f"grow by {percent(work)}"
    return (
        f"A step is {here.num_ops} ops with a barrier after each instead of {there.num_ops}; a prompt of {PROMPT} tokens moves "
        f"{prompt} of activations, a step of {BATCH} decodes {percent(share)} more bytes in all; the FLOPs {flops}"
        f"{_here(base, arm, 'activation_bytes', 'activations')}."
    )


def _attention(base: Side, arm: Side) -> str:
    extra = arm.facts.prompt.activation_bytes - base.facts.prompt.activation_bytes
    decode = arm.facts.decode.activation_bytes - base.facts.decode.activation_bytes
    return (
        f"Scores are written, read and written by the softmax, and read again, 16 bytes each: {quantity(extra)} more for a "
        f"prompt of {PROMPT} tokens, beside {quantity(base.facts.prompt.bytes)} in all, and {quantity(decode)} more for a step "
        f"of {BATCH} decodes after {CONTEXT} tokens, beside {quantity(base.facts.decode.bytes)}"
        f"{_here(base, arm, 'activation_bytes', 'activations')}."
    )


def _reservation(base: Side, arm: Side) -> str:
    longest, each = arm.facts.max_model_len, arm.facts.kv_bytes_per_token
    text = f"A request holds {longest:,} token slots, {quantity(longest * each)}, from its first step to its last"
    wasted = [side.work.waste_share for side in (arm, base)]
    if wasted[0] is not None and wasted[1] is not None:
        text += f": {percent(wasted[0])} of the slots held no token, where blocks leave {percent(wasted[1])}"
    if arm.running is not None and base.running is not None:
        text += f"; {shown(arm.running)} requests ran at a time instead of {shown(base.running)}"
    prompts = f"a prompt computes {shown(arm.computed_prompt)} tokens instead of {shown(base.computed_prompt)}"
    return f"{text}. Prefixes are not shared: {prompts}."


def _kv(base: Side, arm: Side) -> str:
    here, there = arm.facts, base.facts
    return (
        f"A token's keys and values take {here.kv_bytes_per_token:,.0f} B instead of {there.kv_bytes_per_token:,.0f}; a step "
        f"of {BATCH} decodes after {CONTEXT} tokens moves {quantity(here.decode.kv_bytes)} of them instead of "
        f"{quantity(there.decode.kv_bytes)}, in all {quantity(here.decode.bytes)} instead of {quantity(there.decode.bytes)}"
        f"{_here(base, arm, 'kv_bytes', 'KV')}."
    )


def _weights(base: Side, arm: Side) -> str:
    here, there = arm.facts, base.facts
    return (
        f"The weights are {quantity(here.weight_bytes)} ({', '.join(here.formats)}) instead of {quantity(there.weight_bytes)} "
        f"({', '.join(there.formats)}); a step of {BATCH} decodes after {CONTEXT} tokens moves {quantity(here.decode.bytes)} "
        f"instead of {quantity(there.decode.bytes)}, for {quantity(here.decode.flops, 'FLOP')} instead of "
        f"{quantity(there.decode.flops, 'FLOP')}."
    )


def _speculation(base: Side, arm: Side) -> str:
    work = arm.work
    if not work.draft_tokens:
        return (
            f"Nothing was guessed: steps of {shown(work.rows_per_step)} tokens leave no room for guesses "
            "(--speculative-max-rows), or the text did not repeat."
        )
    share = work.accepted_tokens / work.draft_tokens
    rows = [side.work.rows / side.work.output_tokens if side.work.output_tokens else 0.0 for side in (arm, base)]
    return (
        f"{percent(share)} of {work.draft_tokens:,.0f} guessed tokens were right: {shown(rows[0])} tokens computed for each "
        f"output token instead of {shown(rows[1])}, and {_reads(base, arm)}."
    )


_REASONS: dict[str, Callable[[Side, Side], str]] = {
    "batching": _batching,
    "chunking": _chunking,
    "prefix": _prefix,
    "fusion": _fusion,
    "attention": _attention,
    "reservation": _reservation,
    "kv": _kv,
    "weights": _weights,
    "speculation": _speculation,
}
