"""The command that messages name where one transaction stops a shard for good."""

from topics.names import ShardTopics


def skip_advice(topics: ShardTopics, gtid: str, *, force: bool = False) -> str:
    """How to pass the transaction that stops the shard.

    `force`: another attempt may pass it, so that `skip` cannot see for itself that it stops.
    """
    option = " --force" if force else ""
    return (
        f"If nothing else helps, pass this transaction, whose changes will then be missing from "
        f"the log: shardstream skip {topics.keyspace} {topics.shard} --gtid {gtid}{option} "
        f"--reason TEXT (where many stop the shard, --until GTID or --table TABLE instead of "
        f"--gtid passes all)"
    )


def lost_advice(topics: ShardTopics, lost: str) -> str:
    """How to go on with a primary that lacks transactions which the log holds."""
    return (
        f"If the server is right, go on without them; readers are told: "
        f"shardstream skip {topics.keyspace} {topics.shard} --lost {lost} --reason TEXT"
    )


def out_of_order_advice(topics: ShardTopics, gtid: str) -> str:
    """How to pass transactions of MariaDB whose numbers ran backwards."""
    return (
        "Pass them, with the first one behind them whose number is above the log's; the changes of "
        "all of them will then be missing from the log, and the SKIP record names them: "
        f"shardstream skip {topics.keyspace} {topics.shard} --gtid {gtid} --reason TEXT"
    )


def no_number_above(gtid: str) -> str:
    """What to do first where no transaction has a number above the log's yet."""
    return (
        "The server has given no number above the log's yet. First commit one harmless "
        "transaction with such a number (SET gtid_seq_no = NUMBER, in domain "
        f"{gtid.partition('-')[0]}). "
    )
