"""The commands that request the replication stream."""

from uuid import UUID

from event_token import MysqlGtidSet
from producers.replication.stream import (
    encode_mysql_gtid_set,
    mariadb_dump_command,
    mysql_dump_command,
)

SERVER = UUID("896b8653-e543-11f1-95d8-02fc00000001")


def test_untagged_set_keeps_the_form_of_all_versions() -> None:
    """A set is encoded as count, uuid, number of intervals, each as first and one past the last."""
    encoded = encode_mysql_gtid_set(MysqlGtidSet.parse(f"{SERVER}:1-5:9"))

    expected = (
        (1).to_bytes(8, "little")
        + SERVER.bytes
        + (2).to_bytes(8, "little")
        + b"".join(n.to_bytes(8, "little") for n in (1, 6, 9, 10))
    )
    assert encoded == expected


def test_one_tag_switches_the_whole_set_to_the_tagged_form() -> None:
    """The first word marks the tagged form twice; an entry without a tag has an empty one."""
    encoded = encode_mysql_gtid_set(MysqlGtidSet.parse(f"{SERVER}:1-5:tag:1"))

    first = int.from_bytes(encoded[:8], "little")
    assert (first >> 56, (first >> 8) & 0xFFFF, first & 0xFF) == (1, 2, 1)
    entries = encoded[8:]
    assert entries[:17] == SERVER.bytes + b"\0"
    assert entries[17 + 8 + 16 :][:20] == SERVER.bytes + b"\x06tag"


def test_empty_set_asks_for_everything() -> None:
    """A set without a GTID is a count of zero."""
    assert encode_mysql_gtid_set(MysqlGtidSet()) == bytes(8)


def test_dump_commands_name_the_server_id() -> None:
    """Both families' commands carry the replica's server id."""
    server_id = 0xFEDCBA98

    mysql = mysql_dump_command(server_id, MysqlGtidSet())
    mariadb = mariadb_dump_command(server_id)

    assert (mysql[0], mysql[3:7]) == (0x1E, server_id.to_bytes(4, "little"))
    assert (mariadb[0], mariadb[7:11]) == (0x12, server_id.to_bytes(4, "little"))
