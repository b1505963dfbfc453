"""Tells whether the target's server is a shard of the stream. It says itself who it is."""

from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import Connection

from event_token import Flavor, MariadbGtidSet, MysqlGtidSet
from spark_consumers.second_database.dialect import rows_of
from topics.progress.record import LastTransaction, Progress


def shard_of(connection: Connection, shards: Mapping[str, Progress]) -> str | None:
    """Return the shard (with its newest progress) whose server this is, None if it is none."""
    is_mariadb = getattr(connection.dialect, "is_mariadb", False)
    flavor = Flavor.MARIADB if is_mariadb else Flavor.MYSQL
    is_one = _is_mariadb_of if is_mariadb else _is_mysql_of
    mine = (shard for shard, at in shards.items() if at.flavor == flavor and is_one(connection, at))
    return next(mine, None)


def _is_mysql_of(connection: Connection, at: Progress) -> bool:
    """Tell by the UUID: of the server that was read, or of one that wrote transactions."""
    [(uuid,)] = rows_of(connection, "SELECT @@server_uuid")
    own = UUID(str(uuid))
    wrote = {UUID(bytes=raw) for (raw, _), _ in MysqlGtidSet.parse(at.position).servers}
    return own in wrote or (at.last is not None and at.last.server.lower() == str(own))


def _is_mariadb_of(connection: Connection, at: Progress) -> bool:
    """Tell by the server id, which others may have too, and the place of the last transaction."""
    if at.last is None:
        return False
    [(number,)] = rows_of(connection, "SELECT @@server_id")
    return str(number) == at.last.server and _has_at_its_place(connection, at.last)


def _has_at_its_place(connection: Connection, last: LastTransaction) -> bool:
    values = {"file": last.binlog_file, "pos": last.binlog_pos}
    [(there,)] = rows_of(connection, "SELECT BINLOG_GTID_POS(:file, :pos)", values)
    if there is None:
        return False
    [(domain, _, number)] = MariadbGtidSet.parse(last.gtid).domains
    before = {d: n for d, _, n in MariadbGtidSet.parse(str(there)).domains}
    return before.get(domain, 0) == number - 1
