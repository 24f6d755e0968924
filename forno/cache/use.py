"""How much of the reserved KV memory holds tokens: what running requests hold, and what of it they have filled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from forno.cache.block_table import BlockTable


class Holder(Protocol):
    """A running request, as far as it matters here."""

    table: BlockTable
    computed: int
    """Its tokens in the cache."""


class KvUse(NamedTuple):
    """One moment, in token slots."""

    reserved: int = 0
    """Slots of the blocks that running requests hold; a shared block counts once."""
    used: int = 0
    """Of those, slots that hold a token."""

    @property
    def waste_share(self) -> float:
        """Of the reserved slots, those that hold no token; 0 if nothing is reserved."""
        return 1.0 - self.used / self.reserved if self.reserved else 0.0


def kv_use(num_held: int, block_size: int, running: Iterable[Holder]) -> KvUse:
    """``num_held`` blocks are held by ``running``. Shared blocks are full, so every empty slot is one request's alone."""
    blocks, tokens = 0, 0
    for holder in running:
        blocks += len(holder.table.blocks)
        tokens += holder.computed
    reserved = num_held * block_size
    return KvUse(reserved, reserved - (blocks * block_size - tokens))


class UseTotals:
    """Sums over steps: their ratio is the waste averaged over time. Written by one thread, read by any."""

    __slots__ = ("last", "reserved", "used")

    def __init__(self) -> None:
        self.last = KvUse()
        """Of the latest step."""
        self.reserved = 0
        """Slots times steps."""
        self.used = 0

    def add(self, use: KvUse) -> None:
        self.last = use
        self.reserved += use.reserved
        self.used += use.used
