"""What parts of a request's time, shortages and ends of look-ups mean, in words. It knows no view."""

from __future__ import annotations

from forno.cache.misses import Lookup, Miss
from forno.observe.explain import CURRENT_STEP, ENGINE
from forno.observe.explanation import Kind
from forno.observe.record import Shortage

MEANS = {
    Kind.READING: "its bytes came and were read",
    Kind.TOKENIZING: "template, tokens and constraint were prepared",
    Kind.QUEUED: "waited for its turn",
    Kind.PREFILL: "its prompt was computed",
    Kind.BESIDE: "rows of others in the steps of its prompt",
    Kind.DECODE: "steps that gave it tokens",
    Kind.SLOWED: "what others' prompts added to those steps",
    Kind.PREEMPTED: "had lost its blocks and waited for new ones",
    Kind.RECOMPUTE: "computed again what it had lost",
    Kind.CONSTRAINED: "finding which tokens constraints allow",
    Kind.OVERHEAD: "planning its steps, and between them",
    Kind.DETOKENIZING: "tokens to text",
    Kind.RESPONDING: "waited in the event loop to be sent",
    Kind.CLIENT: "the client was slow to read",
    Kind.UNRECORDED: "those steps are not recorded any more",
}
LACKS = {
    Shortage.SEATS: "a seat",
    Shortage.TOKENS: "tokens of a step",
    Shortage.BLOCKS: "free KV blocks",
    Shortage.PREFIX: "a prefix that another computes",
    Shortage.BATCH: "a batch to begin",
    CURRENT_STEP: "the running step to end",
    ENGINE: "the engine's thread",
}
"""What a request waits for; keys are what the records and ``Explanation.waited_for`` hold."""


def of_lookup(lookup: Lookup, num_prompt: int) -> str:
    """The end of the look-up in a sentence."""
    hit = f"{lookup.matched} of {num_prompt} tokens were cached"
    at = lookup.position
    why = {
        Miss.NONE: "all that can be: the last token is always computed",
        Miss.NEVER_SEEN: f"nothing known goes on like this from token {at} on",
        Miss.EVICTED: f"what follows, from token {lookup.matched} on, had been cached and was overwritten",
        Miss.SALT: f"what follows, from token {lookup.matched} on, is cached for another cache_salt",
        Miss.SHORT: "what is left is too short to be found",
        Miss.DIVERGED: f"others began alike and differ from token {at} on",
        Miss.DISABLED: "prefix caching is off, or the request asked for prompt log-probabilities",
    }
    return f"{hit}; {why[lookup.reason]}"
