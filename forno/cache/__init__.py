"""Which KV block holds what: block pool, prefix index, block tables. Ids only; knows no tensor, request or clock."""

from forno.cache.block_pool import BlockPool
from forno.cache.block_table import BlockTable
from forno.cache.contiguous import ContiguousCache
from forno.cache.ghost import GhostCache
from forno.cache.kv_cache import KvCache, Match
from forno.cache.misses import Lookup, Miss
from forno.cache.prefix_index import PrefixIndex, block_hash, root_hash

__all__ = [
    "BlockPool",
    "BlockTable",
    "ContiguousCache",
    "GhostCache",
    "KvCache",
    "Lookup",
    "Match",
    "Miss",
    "PrefixIndex",
    "block_hash",
    "root_hash",
]
