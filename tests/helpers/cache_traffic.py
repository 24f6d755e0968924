"""Requests on a bare ``KvCache``, without a scheduler: what a service's prompts share, and in which order they come."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from forno.cache import BlockTable, KvCache

VOCAB = 50_000


@dataclass
class Job:
    """A request whose answer is known beforehand."""

    prompt: list[int]
    answer: list[int]
    salt: str = ""


def text(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(count)]


def rag(rng: random.Random, count: int, documents: int = 40, tokens: int = 600, salts: int = 1) -> Iterator[Job]:
    """Questions about documents, some asked about much more often than others."""
    system, shelf = text(rng, 50), [text(rng, tokens) for _ in range(documents)]
    for _ in range(count):
        document = shelf[min(int(rng.paretovariate(0.8)) - 1, documents - 1)]
        salt = f"tenant {rng.randrange(salts)}" if salts > 1 else ""
        yield Job(system + document + text(rng, rng.randint(10, 60)), text(rng, rng.randint(5, 60)), salt)


def turns(rng: random.Random, count: int, talks: int = 30) -> Iterator[Job]:
    """Conversations that grow; each turn repeats all that was said before."""
    system, history = text(rng, 70), dict[int, list[int]]()
    for _ in range(count):
        talk = rng.randrange(talks)
        said = history.get(talk, system)
        if len(said) > 1500 or rng.random() < 0.05:
            said = system
        job = Job(said + text(rng, rng.randint(20, 150)), text(rng, rng.randint(20, 200)))
        history[talk] = job.prompt + job.answer
        yield job


def scan(rng: random.Random, count: int, documents: int = 60) -> Iterator[Job]:
    """Documents one after the other, around and around: what defeats an LRU cache that is a little too small."""
    shelf = [text(rng, rng.randint(300, 500)) for _ in range(documents)]
    for i in range(count):
        yield Job(shelf[i % documents] + text(rng, 20), text(rng, 10))


@dataclass
class Live:
    job: Job
    table: BlockTable
    tokens: list[int]
    computed: int


def play(cache: KvCache, jobs: Iterator[Job], at_once: int) -> float:
    """Serve ``jobs`` in their order, ``at_once`` at a time as far as they fit; returns the share of prompt tokens found."""
    live: deque[Live] = deque()
    for job in jobs:
        while len(live) >= at_once or (live and not _fits(cache, job)):
            _advance(cache, live)
        live.append(_admit(cache, job))
    while live:
        _advance(cache, live)
    cache.check_integrity([])
    return cache.hit_tokens / cache.queried_tokens


def _fits(cache: KvCache, job: Job) -> bool:
    table = cache.open(job.salt)
    return cache.fits(table, cache.match(table, job.prompt).blocks, len(job.prompt) + len(job.answer))


def _admit(cache: KvCache, job: Job) -> Live:
    table = cache.open(job.salt)
    match = cache.match(table, job.prompt)
    lookup = cache.explain(table, job.prompt, match)
    cache.adopt(table, match)
    assert cache.grow(table, len(job.prompt) + len(job.answer)), "too many at once for a cache this small"
    cache.count(table, lookup, job.prompt)
    cache.index_computed(table, job.prompt, len(job.prompt))
    return Live(job, table, job.prompt + job.answer, len(job.prompt))


def _advance(cache: KvCache, live: deque[Live]) -> None:
    """The first in the round computes some tokens of its answer, and leaves if that was all."""
    one = live.popleft()
    one.computed = min(one.computed + 20, len(one.tokens) - 1)  # the last token of an answer is never fed back
    cache.index_computed(one.table, one.tokens, one.computed)
    if one.computed == len(one.tokens) - 1:
        cache.close(one.table, one.tokens, one.computed)
    else:
        live.append(one)
