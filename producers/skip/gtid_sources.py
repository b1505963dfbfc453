"""What numbers GTIDs: a UUID of MySQL, with a tag or without, or a domain of MariaDB."""

from uuid import UUID

from event_token import GtidSet, MysqlGtidSet


def source_of(gtid: str) -> str:
    """The source of a GTID."""
    head, separator, _ = gtid.rpartition(":")
    return head if separator else gtid.partition("-")[0]


def sources_of(gtids: GtidSet) -> set[str]:
    """The sources of a set."""
    if isinstance(gtids, MysqlGtidSet):
        return {_mysql_source(*tsid) for tsid, _ in gtids.servers}
    return {str(domain) for domain in gtids.by_domain()}


def of_source(gtids: MysqlGtidSet, source: str) -> MysqlGtidSet:
    """The part of a set that one source numbers."""
    return MysqlGtidSet.of(
        {tsid: list(parts) for tsid, parts in gtids.servers if _mysql_source(*tsid) == source}
    )


def _mysql_source(sid: bytes, tag: str) -> str:
    return f"{UUID(bytes=sid)}:{tag}" if tag else str(UUID(bytes=sid))
