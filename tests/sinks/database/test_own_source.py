"""A target that is itself a shard of the stream is refused."""

from typing import Any

import pytest

from event_token.errors import UsageError
from sinks.database.urls import refuse_own_source, refuse_shard
from spark_consumers.source.data_source import schema_ids_of
from spark_consumers.source.options import SourceOptions
from tests.sinks.database.followed import Followed
from tests.spark_consumers.shop import Shop
from topics.progress.record import LastTransaction, Progress

ON_BOTH = pytest.mark.parametrize("target_server", ["mysql_a", "mariadb_a"], indirect=True)
OTHER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def progress(flavor: str, position: str, server: str, place: tuple[str, int]) -> Progress:
    """The newest progress of a shard whose last transaction is the last one of `position`."""
    last = LastTransaction(position.rsplit(",", maxsplit=1)[-1], 0, server, *place)
    return Progress(1, 0, 0, flavor, position, 0, (), None, "db-a:3306", 0, 0, (last,))


def asked(followed: Followed, statement: str) -> tuple[Any, ...]:
    """The one row that the server answers."""
    return followed.server.ask("mysql", statement)[0]


@ON_BOTH
def test_a_server_of_a_shard_is_no_target(followed: Followed) -> None:
    """The server tells who it is; another one of the same numbers, or version, is a target."""
    is_mysql = followed.url.startswith("mysql")
    status = "SHOW BINARY LOG STATUS" if is_mysql else "SHOW MASTER STATUS"
    place = asked(followed, status)[:2]
    followed.rows("CREATE TABLE shop.written (id INT PRIMARY KEY)")
    if is_mysql:
        [uuid] = asked(followed, "SELECT @@server_uuid")
        own = [progress("mysql", f"{OTHER}:1-9,{uuid}:1-3", OTHER, place)]
        own += [progress("mysql", f"{OTHER}:1-9", uuid.upper(), place)]
        other = [progress("mysql", f"{OTHER}:1-9", OTHER, place)]
    else:
        number, gtids = asked(followed, "SELECT @@server_id, @@gtid_binlog_pos")
        domain, server, sequence = gtids.split("-")
        own = [progress("mariadb", gtids, str(number), place)]
        other = [
            progress("mariadb", gtids, "77", place),
            progress("mariadb", f"{domain}-{server}-{int(sequence) + 5}", str(number), place),
            progress("mariadb", gtids, str(number), ("binlog.777777", 4)),
            progress("mysql", f"{OTHER}:1-9", str(number), place),
        ]

    for at in own:
        with pytest.raises(UsageError, match=r"is a server of shard 80-: .*--table"):
            refuse_shard(followed.url, {"-80": other[0], "80-": at})
    for at in other:
        refuse_shard(followed.url, {"-80": at})


@ON_BOTH
def test_the_progress_of_all_shards_is_asked(shop: Shop, followed: Followed) -> None:
    """The newest progress of the shards that serve is read from Kafka; none is of this server."""
    shop.write(1)
    source = SourceOptions.parse(shop.options())
    schema_ids = schema_ids_of(source.kafka, source.registry_url)

    refuse_own_source(followed.url, source.kafka, shop.keyspace, schema_ids)
