"""UUID, INET4 and INET6 of MariaDB: what is declared, what the server says, what follows."""

import hmac

import pytest

from event_token.errors import UsageError
from producers.decoder import HiddenType, NoKeyspaceId, RuleBroken
from producers.filters.binding import TableFilters, sharding_columns
from producers.filters.rules import FilterRule, FilterSettings, Mask, MaskKind, TablePattern
from producers.typed_columns import NOTHING_DECLARED, TypedColumns
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set, run_statements
from tests.producers.decoder.decoding import ALL_ROWS, Sink, catalog_of, decode, new_decoder
from topics.keyspace.topology import TableVindex
from topics.keyspace.vindexes import vindex_named

TABLE = "CREATE TABLE t(u UUID PRIMARY KEY, a INET6, n INT)"
OLD, NEW = "123e4567-e89b-12d3-a456-426655440000", "0190163d-8694-739b-aea5-966c26f8ad91"
ROWS = f"INSERT INTO t VALUES ('{OLD}', '::ffff:1.2.3.4', 1), ('{NEW}', NULL, 2)"
KEY = b"k" * 32


def declared(database: str) -> TypedColumns:
    """What TABLE needs."""
    return TypedColumns({f"{database}.t.u": "uuid", f"{database}.t.a": "inet6"})


def filtered(server: DatabaseFixture, **rule: object) -> Sink:
    """The rows of TABLE under a rule."""
    name, before = server.new_database(), executed_set(server)
    run_statements(server, name, (TABLE, ROWS))
    rules = (FilterRule(TablePattern(f"{name}.t"), **rule),)  # type: ignore[arg-type]
    filters = TableFilters(FilterSettings(rules=rules, hmac_key=KEY), {})
    catalog = catalog_of(server, declared(name))
    stream = capture(server, before)
    return decode(stream, server.flavor, before, rules=filters, catalog=catalog)[0]


def test_rules_see_text_and_compare_none(mariadb_a: DatabaseFixture) -> None:
    """NULL is seen and masks take the text; the types' own order and equality are refused."""
    sink = filtered(mariadb_a, where="a IS NOT NULL", masks={"u": Mask(MaskKind.HMAC)})
    cut = filtered(mariadb_a, masks={"a": Mask(MaskKind.TRUNCATE, 7)})

    hashed = hmac.digest(KEY, OLD.encode(), "sha256").hex()
    assert [e.after for e in sink.events()[1:]] == [{"u": hashed, "a": "::ffff:1.2.3.4", "n": 1}]
    assert [(e.after or {})["a"] for e in cut.events()[1:]] == ["::ffff:", None]
    for where in (
        f"u = '{OLD}'",
        "a > '::'",
        f"u IN ('{NEW}')",
        "u LIKE '1%'",
        "a BETWEEN 1 AND 2",
    ):
        with pytest.raises(RuleBroken, match=r"a comparison of the type (uuid|inet6)"):
            filtered(mariadb_a, where=where)


@pytest.mark.parametrize("vindex", ["xxhash", "unicode_loose_md5"])
def test_keyspace_ids_are_made_of_the_text(mariadb_a: DatabaseFixture, vindex: str) -> None:
    """A UUID shards by the text that a SELECT shows; a vindex of numbers does not take it."""
    name, before = mariadb_a.new_database(), executed_set(mariadb_a)
    run_statements(mariadb_a, name, (TABLE, ROWS))
    stream, catalog = capture(mariadb_a, before), catalog_of(mariadb_a, declared(name))

    def ids(chosen: str) -> list[bytes | None]:
        vindexes = sharding_columns([TableVindex(name, "t", ("u",), chosen)])
        sink, _ = decode(stream, mariadb_a.flavor, before, vindexes=vindexes, catalog=catalog)
        return [event.keyspace_id_after for event in sink.events()[1:]]

    assert ids(vindex) == [vindex_named(vindex).keyspace_id(text) for text in (OLD, NEW)]
    with pytest.raises(NoKeyspaceId, match="cannot take column u of type uuid"):
        ids("hash")


@pytest.mark.parametrize(
    ("first", "then", "declared_as", "said"),
    [
        ("BINARY(16)", "MODIFY b UUID", "", "column {} is uuid, which a binlog shows as binary"),
        ("UUID", "MODIFY b CHAR(36)", "uuid", "declares {} as uuid, but it is char"),
        ("UUID", "DROP b, ADD b INET6", "uuid", "column {} is inet6, which a binlog shows as"),
    ],
)
def test_a_statement_that_breaks_a_declaration_stops(
    mariadb_a: DatabaseFixture, first: str, then: str, declared_as: str, said: str
) -> None:
    """The table map may stay the same, byte for byte: the server is asked after each ALTER."""
    name, before = mariadb_a.new_database(), executed_set(mariadb_a)
    place = f"{name}.t.b"
    typed = TypedColumns({place: declared_as}) if declared_as else NOTHING_DECLARED
    sink = Sink()
    decoder = new_decoder(sink, mariadb_a.flavor, before, catalog=catalog_of(mariadb_a, typed))
    raw = OLD.replace("-", "")
    insert = f"INSERT INTO t VALUES (x'{raw}')"
    run_statements(mariadb_a, name, (f"CREATE TABLE t(b {first})", insert))
    stream = capture(mariadb_a, before)
    decoder.feed(stream, 0, len(stream), ALL_ROWS)
    decoder.take_batch()
    before = executed_set(mariadb_a)
    run_statements(mariadb_a, name, ("DELETE FROM t", f"ALTER TABLE t {then}"))
    stream = capture(mariadb_a, before)

    with pytest.raises(HiddenType) as caught:
        decoder.feed(stream, 0, len(stream), ALL_ROWS)
    assert said.format(place) in str(caught.value)
    value = OLD if declared_as else bytes.fromhex(raw)
    assert [e.before or e.after for e in sink.events()[1:]] == [{"b": value}]


@pytest.mark.parametrize("end", ["DROP TABLE t", "ALTER TABLE t MODIFY u CHAR(36), DROP a"])
def test_what_is_gone_is_said(mariadb_a: DatabaseFixture, end: str) -> None:
    """Of a table that was changed since nobody knows: bytes and a notice, or what is declared."""
    name, before = mariadb_a.new_database(), executed_set(mariadb_a)
    run_statements(mariadb_a, name, (TABLE, ROWS, end))
    stream = capture(mariadb_a, before)
    notices: list[str] = []

    def logged(typed: TypedColumns) -> list[object]:
        catalog = catalog_of(mariadb_a, typed, notices.append)
        sink, _ = decode(stream, mariadb_a.flavor, before, catalog=catalog)
        return [event.after["u"] for event in sink.events() if event.after is not None]

    if end.startswith("DROP"):
        assert logged(declared(name)) == [OLD, NEW]
    assert notices == []
    as_bytes = [bytes.fromhex(text.replace("-", "")) for text in (OLD, NEW)]
    assert logged(NOTHING_DECLARED) == as_bytes
    assert [f"{name}.t.u, {name}.t.a: dropped from" in notice for notice in notices] == [True]


def test_declarations_by_expression() -> None:
    """A name wins over expressions; expressions that contradict each other are refused."""
    typed = TypedColumns({"d.t.u": "inet6", r"/d\..*\.u/": "uuid", "/.*x/": "bytes"})

    places = ("d.t.u", "d.s.u", "d.s.x", "e.s.u")
    assert [typed.type_of(place) for place in places] == ["inet6", "uuid", "bytes", ""]
    with pytest.raises(UsageError, match=r"declares d\.t\.u as inet4 and as uuid"):
        TypedColumns({"/.*u/": "uuid", "/d.*/": "inet4"}).type_of("d.t.u")
    with pytest.raises(UsageError, match=r"'d.t.u' is 'int', .*'d.t' is not database"):
        TypedColumns({"d.t": "uuid", "d.t.u": "int"})
    with pytest.raises(UsageError, match="no regular expression"):
        TypedColumns({"/(/": "uuid"})
