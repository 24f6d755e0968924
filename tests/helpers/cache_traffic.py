"""Requests on a bare ``KvCache``, without a scheduler: what a service's prompts share, and in which order they come."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator
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
        while len(live) >= at_once or not _fits(cache, job, live):
            assert live, "a job is longer than the cache"
            _advance(cache, live)
        live.append(_admit(cache, job))
    while live:
        _advance(cache, live)
    cache.check_integrity([])
    return cache.hit_tokens / cache.queried_tokens


def _fits(cache: KvCache, job: Job, live: Iterable[Live]) -> bool:
    """Whether all will get what they need to their ends, and nobody computes the job's next block now."""
    table = cache.open(job.salt)
    matched = cache.match(table, job.prompt).blocks
    following = table.hashes[len(matched) : len(matched) + 1]
    if any(following and following[0] in one.table.hashes[one.table.indexed :] for one in live):
        return False
    bespoken = sum(cache.blocks_for(len(one.tokens)) - len(one.table.blocks) for one in live)
    return cache.fits(table, matched, len(job.prompt) + len(job.answer), bespoken)


def _admit(cache: KvCache, job: Job) -> Live:
    table = cache.open(job.salt)
    match = cache.match(table, job.prompt)
    lookup = cache.explain(table, job.prompt, match)
    cache.adopt(table, match)
    cache.count(table, lookup, job.prompt)
    return Live(job, table, job.prompt + job.answer, match.num_tokens)


def _advance(cache: KvCache, live: deque[Live]) -> None:
    """The first in the round computes a chunk of its prompt or some tokens of its answer, and leaves if that was all."""
    one = live.popleft()
    end = len(one.tokens) - 1  # the last token of an answer is never fed back
    one.computed = min(one.computed + (128 if one.computed < len(one.job.prompt) else 20), end)
    assert cache.grow(one.table, one.computed), "it fitted when it was admitted"
    cache.index_computed(one.table, one.tokens, one.computed)
    if one.computed == end:
        cache.close(one.table, one.tokens, one.computed)
    else:
        live.append(one)
