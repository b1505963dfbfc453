"""What a primary key identifies: a row of the keyspace, or a row of one part of it."""

from enum import StrEnum


class KeyScope(StrEnum):
    """Where a primary key is unique: in the whole keyspace, or only on a shard.

    Shards that were filled independently, with AUTO_INCREMENT each, have the same keys for other
    rows. With SHARD the keyspace id joins the primary key, as its last column. It is that of the
    row, not the name of a shard, so a reshard does not change it.
    """

    KEYSPACE = "keyspace"
    SHARD = "shard"
