"""The command that messages name where one transaction stops a shard for good."""

from topics.names import ShardTopics


def skip_advice(topics: ShardTopics, gtid: str) -> str:
    """How to pass the transaction that stops the shard."""
    return (
        f"If nothing else helps, pass this transaction, whose changes will then be missing from "
        f"the log: shardstream skip {topics.keyspace} {topics.shard} --gtid {gtid} --reason TEXT"
    )


def lost_advice(topics: ShardTopics, lost: str) -> str:
    """How to go on with a primary that lacks transactions which the log holds."""
    return (
        f"If the server is right, go on without them; readers are told: "
        f"shardstream skip {topics.keyspace} {topics.shard} --lost {lost} --reason TEXT"
    )
