"""Generated GTID sets, tokens and positions, and the plain Python sets that model them."""

from uuid import UUID

from hypothesis import strategies as st

from event_token import (
    EventToken,
    Flavor,
    GtidSet,
    MariadbGtidSet,
    MysqlGtidSet,
    ShardPosition,
    StreamPosition,
    parse_gtid_set,
)

# The letters of opaque forms.
URL_SAFE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

# Few of each and small numbers, so that intervals of two sets often meet.
UUIDS = (
    "00000000-0000-0000-0000-000000000000",
    "3e11fa47-71ca-11e1-9e33-c80aa9429562",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
)
TAGS = ("", "_b", "tag_1")

# One MySQL GTID of the model: server, tag, number.
Gtid = tuple[str, str, int]

mysql_gtids = st.tuples(st.sampled_from(UUIDS), st.sampled_from(TAGS), st.integers(1, 9))
mysql_models = st.frozensets(mysql_gtids, max_size=40)


def gtid_text(gtid: Gtid) -> str:
    """Return one MySQL GTID as servers write it."""
    uuid_text, tag, gno = gtid
    return f"{uuid_text}:{tag}:{gno}" if tag else f"{uuid_text}:{gno}"


def raw_uuid(uuid_text: str) -> bytes:
    """Return the 16 bytes of a uuid."""
    return UUID(uuid_text).bytes


def mysql_set(model: frozenset[Gtid]) -> MysqlGtidSet:
    """Return the set of a model, from a text with one part a GTID."""
    return MysqlGtidSet.parse(",".join(gtid_text(gtid) for gtid in model))


def mysql_model(gtid_set: MysqlGtidSet) -> frozenset[Gtid]:
    """Return the model of a set."""
    return frozenset(
        (str(UUID(bytes=sid)), tag, gno)
        for (sid, tag), intervals in gtid_set.servers
        for first, last in intervals
        for gno in range(first, last + 1)
    )


mysql_sets = st.builds(mysql_set, mysql_models)

# Two domains of two servers each, of which each number is one's: with trails, and splits between.
mariadb_sets = st.builds(
    lambda gtids: MariadbGtidSet.parse(
        ",".join(f"{domain}-{server}-{number}" for (domain, number), server in gtids.items())
    ),
    st.dictionaries(st.tuples(st.integers(0, 3), st.integers(1, 4)), st.integers(1, 2), max_size=6),
)


def _huge(flavor: Flavor) -> GtidSet:
    text = {
        Flavor.MYSQL: f"{UUIDS[0]}:9223372036854775806",
        Flavor.MARIADB: "4294967295-4294967295-18446744073709551615",
    }
    return parse_gtid_set(text[flavor], flavor)


gtid_sets: st.SearchStrategy[GtidSet] = st.one_of(
    mysql_sets,
    mariadb_sets,
    st.sampled_from(Flavor).map(_huge),
)

shard_names = st.sampled_from(("-", "-80", "80-", "80-c0.2", "ä-ö"))
timestamps_us = st.none() | st.integers(0, 2**63 - 1)

native_tokens = st.builds(EventToken, timestamps_us, shard_names, gtid_sets)
event_tokens = st.builds(
    EventToken, timestamps_us, shard_names, gtid_sets, st.none() | native_tokens
)

shard_positions = st.builds(
    ShardPosition,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.none() | event_tokens,
)
stream_positions = st.builds(
    StreamPosition,
    st.integers(0, 1000),
    st.integers(0, 2**63 - 1),
    st.dictionaries(shard_names, shard_positions, max_size=4),
)
