"""Which rules are accepted, and which are refused with a reason before anything starts."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_token.errors import UsageError
from producers.filters.binding import HMAC_CHARS_MAX, Range, bind_rule, split_ranges
from producers.filters.conditions import AllOf, RuleError
from producers.filters.rules import (
    KEY_ID_CHARS_MAX,
    FilterRule,
    FilterSettings,
    Mask,
    MaskKind,
    TablePattern,
)
from producers.filters.where import SourceColumn, compile_where
from producers.filters.where_syntax import parse_where
from topics.keyspace.vindexes import vindex_named
from topics.records.table_shape import Column, ValueKind

KEY = b"0123456789abcdef0123456789abcdef"
COLUMNS = [
    SourceColumn(Column("id", ValueKind.LONG, "bigint"), nullable=False),
    SourceColumn(Column("Name", ValueKind.STRING, "varchar(9)"), "utf8mb4_0900_ai_ci"),
    SourceColumn(Column("code", ValueKind.STRING, "char(3)"), "utf8mb4_bin"),
    SourceColumn(Column("west", ValueKind.STRING, "char(3)"), "latin1_bin"),
    SourceColumn(Column("day", ValueKind.DATE, "date"), nullable=False),
    SourceColumn(Column("seen", ValueKind.TIMESTAMP, "timestamp")),
    SourceColumn(Column("price", ValueKind.DECIMAL, "decimal(9,2)", 9, 2)),
    SourceColumn(Column("doc", ValueKind.JSON, "json")),
    SourceColumn(Column("uid", ValueKind.BYTES, "uuid"), "binary", hidden_type="uuid"),
]
ORDERS = TablePattern("shop.orders")
LOWEST = -(1 << 63)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("", "cannot be parsed"),
        ("id =", "cannot be parsed"),
        ("id = 1; DROP TABLE x", "cannot be parsed"),
        ("id = 1 UNION SELECT 1", "cannot be parsed"),
        ("id = 'a\\'b'", "backslash"),
        ("id = 1 -- all", "comment"),
        ("id = 1 || code = 'x'", r"'\|\|': write OR"),
        ("!(id = 1)", "'!': write NOT"),
        ('code = "x"', "write it in 'quotes'"),
        ("id = code", "code is used where a constant is expected"),
        ("id = NULL", "IS NULL"),
        ("id IS TRUE", "is not one of: AND, OR"),
        ("id = 1 = 2", "where a column of the table is expected"),
        ("code REGEXP 'x'", "is not one of: AND, OR"),
        ("id XOR code", "is not one of: AND, OR"),
        ("orders.id = 1", "is not one of: AND, OR"),
        ("LOWER(code) = 'x'", "where a column of the table is expected"),
        ("id IN (SELECT 1)", "is not one of: AND, OR"),
        ("code LIKE 'x' ESCAPE 'ab'", "ESCAPE takes one character"),
        ("code LIKE 'x|' ESCAPE '|'", "ends with its escape character"),
        ("code LIKE 'x%%' ESCAPE '%'", "a character that is not a wildcard"),
        ("crc(id)", "the only function is in_keyrange"),
        ("in_keyrange('zz')", "is not a key range"),
        ("in_keyrange('-80')", "no vindex in the topology"),
        ("in_keyrange(80)", "is not one of: AND, OR"),
        ("code COLLATE utf8mb4_bin = 'a' COLLATE utf8mb4_bin", "is not one of: AND, OR"),
        ("in_keyrange(id, 'md5', '-80')", "vindex 'md5' is not known"),
        ("in_keyrange(day, 'hash', '-80')", "cannot take column day"),
        ("(" * 2000 + "id = 1" + ")" * 2000, "nested too deeply"),
        ("id = 1 OR " * 1200 + "id = 1", "more than 10000"),
        ("missing = 1", "there is no column missing; there are id, Name"),
        ("name = 'x'", r"by utf8mb4_0900_ai_ci .* name a collation .*COLLATE"),
        ("name COLLATE utf8mb4_general_ci = 'x'", "by utf8mb4_general_ci"),
        ("name COLLATE ascii_bin = 'x'", "by ascii_bin"),
        ("west < 'x'", "< by latin1_bin"),
        ("west = '€'", "text that latin1 cannot hold"),
        ("code = 5", "comparison of text with number '5'"),
        ("id = '5'", "comparison with text '5'"),
        ("id = 1e3", "comparison with float '1e3'"),
        (f"price = 0.{'1' * 39}", "more than 38 after the point"),
        ("id COLLATE utf8mb4_bin = 1", "COLLATE utf8mb4_bin of a column that is not text"),
        ("day = '2024-02-31'", "a date that does not exist"),
        ("day = '24-2-1'", r"write '2024-12-31'"),
        ("day IS NULL", "is NOT NULL: servers treat its zero dates as NULL"),
        ("seen > '2024-01-01 00:00:00.5'", "1 digits of a second"),
        ("seen > '1960-01-01'", "limits of TIMESTAMP"),
        ("doc = '{}'", "comparison with text"),
        ("doc LIKE 'x'", "LIKE of a column that is neither text nor bytes"),
        ("uid = x'00'", "comparison of the type uuid"),
        ("uid IN (x'00')", "comparison of the type uuid"),
        ("uid LIKE 'x'", "comparison of the type uuid"),
        ("id IN ()", "is not one of: AND, OR"),
        ("id = 1e", "is not one of: AND, OR"),
        ("code LIKE 5", "is not one of: AND, OR"),
        ("code REGEXP 'x' ESCAPE '|'", "is not one of: AND, OR"),
        ("code COLLATE utf8mb4_bin IS NULL", "is not one of: AND, OR"),
        ("in_keyrange(id, 'hash', 80)", "is not one of: AND, OR"),
        ("in_keyrange(id, 5, '80-')", "is not one of: AND, OR"),
        ("id COLLATE utf8mb4_bin IN (1)", "COLLATE utf8mb4_bin of a column that is not text"),
        ("day COLLATE utf8mb4_bin IN ('2024-02-29')", "of a column that is not text"),
        ("west LIKE '€%'", "text that latin1 cannot hold"),
    ],
)
def test_what_a_where_may_not_say(where: str, said: str) -> None:
    """A condition that cannot be evaluated as the server would is refused with its reason."""
    with pytest.raises(UsageError, match=said):
        compile_where(parse_where(where), COLUMNS, None)


@pytest.mark.parametrize(
    ("where", "row", "wanted"),
    [
        ("id = 1 AND code = 'a'", {"id": 1, "code": "a  "}, True),
        ("id = 1 AND code = 'a'", {"id": 1, "code": None}, False),
        ("id = 2 AND code = 'a'", {"id": 1, "code": None}, False),
        ("id = 1 OR code = 'a'", {"id": 1, "code": None}, True),
        ("NOT code = 'a'", {"code": None}, False),
        ("NOT (id = 1 AND code = 'a')", {"id": 1, "code": None}, False),
        ("NOT (id = 1 AND code = 'a')", {"id": 2, "code": None}, True),
        ("NOT (id = 1 OR code = 'a')", {"id": 2, "code": None}, False),
        ("NOT (code IS NULL)", {"code": None}, False),
        ("NOT code <=> 'a'", {"code": None}, True),
        ("NOT in_keyrange(id, 'hash', '-80')", {"id": 1}, False),
        ("code <=> 'a'", {"code": None}, False),
        ("price BETWEEN 1 AND 2.5", {"price": 250}, True),
        ("price NOT IN (1, 2.005)", {"price": 200}, True),
        ("NAME COLLATE utf8mb4_0900_bin LIKE 'a%b_'", {"Name": "axxbc"}, True),
        ("day < '2024-01-01'", {"day": "0000-00-00"}, True),
        ("day > '2024-02-29'", {"day": "2024-02-31"}, True),
        ("day < '2024-02-29'", {"day": "2024-02-00"}, True),
        ("day < '0001-01-01'", {"day": "0000-00-00"}, True),
        ("id IS NULL", {"id": 1}, False),
        ("id = (5)", {"id": 5}, True),
        ("code = '!'", {"code": "!"}, True),
        ("in_keyrange(id, 'hash', '-80')", {"id": 1}, True),
        ("in_keyrange(id, 'hash', '80-')", {"id": 1}, False),
        ("in_keyrange('-40')", {"id": 1}, True),
    ],
)
def test_three_valued_logic(where: str, row: dict[str, object], wanted: bool) -> None:
    """NULL makes a comparison neither true nor false, and only true keeps a row."""
    found = compile_where(parse_where(where), COLUMNS, ("ID", vindex_named("hash")))

    values = [row[COLUMNS[index].name] for index in found.columns]
    assert found.predicate(*values) is wanted


@pytest.mark.parametrize(
    ("where", "ranges", "rest"),
    [
        ("id > 0 AND id BETWEEN -5 AND 20000", [Range(0, 1, 20000)], 0),
        ("price IS NOT NULL AND (code = 'a' AND price < 2.5)", [Range(6, LOWEST, 249)], 1),
        ("id = 7 AND 3 <= id", [Range(0, 7, 7)], 0),
        ("id BETWEEN 2 AND 5", [Range(0, 2, 5)], 0),
        ("id < 1.5 AND id <> 3 AND id IN (1, 2)", [], 3),
        ("id > 9223372036854775807", [], 1),
        ("id > 5", [Range(0, 6, 2**63 - 1)], 0),
        ("id < 4611686018427387903", [Range(0, LOWEST, 2**62 - 2)], 0),
        ("id < 4611686018427387904", [], 1),
        ("id > -4611686018427387904", [], 1),
        ("id = 1 OR price = 2", [], 1),
        ("NOT id > 3 AND day < '2024-01-01'", [], 2),
    ],
)
def test_bounds_of_whole_numbers_are_split_off(where: str, ranges: list[Range], rest: int) -> None:
    """Terms joined by AND become bounds where possible, and `rest` terms remain."""
    found, left = split_ranges(parse_where(where), COLUMNS)

    assert found == ranges
    assert (len(left.terms) if isinstance(left, AllOf) else 0) == rest


@given(
    st.lists(
        st.sampled_from(("id > {}", "{} >= id", "id BETWEEN {} AND 3", "id = {}", "id <> {}")),
        min_size=1,
    ),
    st.lists(st.integers(-4, 4), min_size=1),
    st.one_of(st.none(), st.integers(-6, 6)),
)
def test_ranges_and_rest_say_what_the_whole_says(
    terms: list[str], numbers: list[int], value: int | None
) -> None:
    """A split WHERE keeps the same rows, NULL included."""
    where = " AND ".join(term.format(numbers[i % len(numbers)]) for i, term in enumerate(terms))
    whole = parse_where(where)

    ranges, rest = split_ranges(whole, COLUMNS)

    said = all(value is not None and each.low <= value <= each.high for each in ranges)
    if rest is not None:
        said = said and compile_where(rest, COLUMNS, None).predicate(value)
    assert said is compile_where(whole, COLUMNS, None).predicate(value)


def bound(**changes: object) -> list[tuple[str, str]]:
    """The (name, type) that a rule writes of COLUMNS; `id` is key and sharding column."""
    rule = FilterRule(ORDERS, **changes)  # type: ignore[arg-type]
    found = bind_rule(rule, COLUMNS, [0], ("id", vindex_named("hash")), KEY)
    return [(output.column.name, output.column.sql_type) for output in found.outputs]


def test_columns_and_masks_make_the_written_table() -> None:
    """Listed columns are in the table's order; a dropped one is gone, an HMAC is text."""
    masks = {
        "name": Mask(MaskKind.DROP),
        "CODE": Mask(MaskKind.HMAC),
        "price": Mask(MaskKind.NULL),
        "west": Mask(MaskKind.TRUNCATE, 1),
    }
    assert bound(columns=("code", "ID", "west", "price", "name"), masks=masks) == [
        ("id", "bigint"),
        ("code", "varchar(97)"),
        ("west", "char(3)"),
        ("price", "decimal(9,2)"),
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"columns": ("id", "nope")}, "there is no column nope"),
        ({"masks": {"nope": Mask(MaskKind.NULL)}}, "there is no column nope"),
        ({"columns": ("code",)}, "id is left out, but it is in the primary key"),
        ({"masks": {"id": Mask(MaskKind.HMAC)}}, "id is masked, but it is the sharding column"),
        ({"masks": {"price": Mask(MaskKind.TRUNCATE, 1)}}, "price .* cannot be truncated"),
        ({"masks": {"doc": Mask(MaskKind.HMAC)}}, "doc .* cannot be replaced by an HMAC"),
    ],
)
def test_rules_that_do_not_fit_the_table(changes: dict[str, object], said: str) -> None:
    """Missing columns, dropped keys and masks of the wrong type are one error each."""
    with pytest.raises(RuleError, match=said):
        bound(**changes)


def test_a_masked_key_stays_a_key() -> None:
    """Of all masks only hmac keeps keys distinct."""
    rule = FilterRule(ORDERS, masks={"code": Mask(MaskKind.NULL)})

    with pytest.raises(RuleError, match="only hmac keeps keys apart"):
        bind_rule(rule, COLUMNS, [2], None, KEY)


@pytest.mark.parametrize(
    ("primary_key", "said"),
    [([2], "code is in the primary key, so"), ([], "is in a table without a primary key, so")],
)
def test_what_rows_are_found_by_has_one_key(primary_key: list[int], said: str) -> None:
    """Readers would not find the rows of an earlier key, so a key with an id is refused."""
    rule = FilterRule(ORDERS, masks={"code": Mask(MaskKind.HMAC)})

    with pytest.raises(RuleError, match=said):
        bind_rule(rule, COLUMNS, primary_key, None, KEY, "2026")
    bind_rule(rule, COLUMNS, [0], None, KEY, "2026")
    bind_rule(rule, COLUMNS, primary_key, None, KEY)


def test_values_of_keys_are_told_apart() -> None:
    """The id of the key stands before the value; the type has room for each, and stays the same."""
    rule = FilterRule(ORDERS, masks={"code": Mask(MaskKind.HMAC)})
    columns = []
    masked = []
    for key, key_id in ((KEY, ""), (KEY, "1"), (b"l" * 32, "k" * KEY_ID_CHARS_MAX)):
        [output] = [
            output
            for output in bind_rule(rule, COLUMNS, [0], None, key, key_id).outputs
            if output.column.name == "code"
        ]
        assert output.mask is not None
        columns.append(output.column)
        masked.append(str(output.mask("Ä")))

    assert masked[1] == f"1:{masked[0]}"
    assert masked[2].startswith("k" * KEY_ID_CHARS_MAX + ":")
    assert masked[2].rpartition(":")[2] != masked[0]
    assert len(set(columns)) == 1
    assert len(masked[2]) == HMAC_CHARS_MAX


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        (1, "Ä", "Ä".encode()),
        (0, -5, b"-5"),
        (6, -1205, b"-12.05"),
        (4, 0, b"1970-01-01"),
        (4, "0000-00-00", b"0000-00-00"),
    ],
)
def test_an_hmac_is_that_of_the_value_as_the_server_prints_it(
    column: int, value: object, text: bytes
) -> None:
    """The mask is HMAC-SHA-256 in hexadecimal under the key, the same on all shards."""
    name = COLUMNS[column].name
    rule = FilterRule(ORDERS, masks={name: Mask(MaskKind.HMAC)})
    outputs = bind_rule(rule, COLUMNS, [], None, KEY).outputs
    mask = outputs[column].mask

    assert mask is not None
    assert mask(value) == hmac.new(KEY, text, hashlib.sha256).hexdigest()


def test_which_tables_are_meant() -> None:
    """Names and whole regular expressions; exclude wins; the product's own tables always pass."""
    patterns = FilterSettings(
        include=(TablePattern("/shop\\..*/"), TablePattern("crm.people")),
        exclude=(TablePattern("/.*tmp.*/"), TablePattern("/_shardstream.*/")),
    )
    names = ("shop.orders", "shop.tmp_1", "crm.people", "crm.peoples", "xshop.orders")

    wanted = {name: patterns.includes(*name.split(".")) for name in names}
    assert [name for name in names if wanted[name]] == ["shop.orders", "crm.people"]
    assert patterns.includes("_shardstream", "journal")


def test_wrong_settings_of_rules_are_refused() -> None:
    """Half names, broken expressions, two rules for a table and a short key are one error each."""
    with pytest.raises(RuleError, match=r"write database\.table"):
        TablePattern("orders")
    for nothing in ("/", "//", ".", "shop."):
        with pytest.raises(RuleError, match=r"write database\.table"):
            TablePattern(nothing)
    assert TablePattern("/./").is_regexp
    with pytest.raises(RuleError, match="is not a regular expression"):
        TablePattern("/(/")
    with pytest.raises(RuleError, match=r"rule of shop\.orders: the WHERE has a comment"):
        FilterRule(ORDERS, where="id = 1 /* */")
    two = FilterSettings(rules=(FilterRule(ORDERS), FilterRule(TablePattern("/shop.*/"))))
    with pytest.raises(RuleError, match=r"shop\.orders has 2 rules"):
        two.rule_for("shop", "orders")
    with pytest.raises(RuleError, match="at least 32 bytes in hmac_key, and it has 5"):
        FilterSettings(
            rules=(FilterRule(ORDERS, masks={"x": Mask(MaskKind.HMAC)}),), hmac_key=b"short"
        )
    long_enough = FilterSettings(
        rules=(FilterRule(ORDERS, masks={"x": Mask(MaskKind.HMAC)}),), hmac_key=KEY
    )
    assert len(KEY) == 32
    assert "0123" not in repr(long_enough)


@pytest.mark.parametrize(
    ("where", "ranges", "kept"),
    [
        ("id > 5 AND code = 'a'", 1, [True, False]),
        ("code = 'a' OR id = 7", 0, [True, False]),
        ("id > 5", 1, None),
    ],
)
def test_a_bound_rule_has_ranges_and_the_rest(
    where: str, ranges: int, kept: list[bool] | None
) -> None:
    """Bounds of integers are tested apart, what is left of the condition by the predicate."""
    rule = FilterRule(ORDERS, columns=("id", "code"), where=where)
    bound = bind_rule(rule, COLUMNS, [0], None, KEY)

    assert len(bound.ranges) == ranges
    if kept is None:
        assert bound.where is None
        return
    assert bound.where is not None
    rows = [{"id": 6, "code": "a"}, {"id": 6, "code": "b"}]
    names = [COLUMNS[index].name for index in bound.where.columns]
    assert [bound.where.predicate(*(row[name] for name in names)) for row in rows] == kept


def test_the_product_s_own_tables_have_no_rule() -> None:
    """An expression that matches every table does not apply to them."""
    every = FilterRule(TablePattern("/.*/"), masks={"id": Mask(MaskKind.DROP)})
    settings = FilterSettings(rules=(every,))

    assert settings.rule_for("shop", "orders") == every
    assert settings.rule_for("_shardstream", "journal") is None
    assert FilterSettings().rule_for("shop", "orders") is None


@pytest.mark.parametrize(
    ("include", "exclude", "left_out"),
    [
        (("shop.orders",), (), True),
        (("/shop\\..*/",), (), True),
        (("/shop[.](a|b)/",), (), True),
        (("/(shop|hr)\\..*/",), (), False),
        (("/shop\\..*|hr\\.x/",), (), False),
        (("/shop\\.[(]|hr\\.x/",), (), False),
        (("/.*/",), (), False),
        (("hr.staff",), (), False),
        (("shop.orders", "hr.staff"), (), False),
        ((), ("/hr\\..*/",), True),
        ((), ("/hr\\.pay_.*/",), False),
        ((), ("hr.*",), False),
        ((), (), False),
    ],
)
def test_databases_left_out(
    include: tuple[str, ...], exclude: tuple[str, ...], *, left_out: bool
) -> None:
    """A18: a database is left out if no rule can want one of its tables."""
    settings = FilterSettings(tuple(map(TablePattern, include)), tuple(map(TablePattern, exclude)))

    assert settings.leaves_out_database("hr") is left_out
    assert not settings.leaves_out_database("_shardstream")


def test_a_copy_knows_when_a_table_s_rule_has_changed() -> None:
    """The text of a rule changes with its columns, condition and masks, never with the key."""
    rule = FilterRule(ORDERS, ("id", "code"), "id > 1", {"code": Mask(MaskKind.TRUNCATE, 2)})
    settings = FilterSettings(include=(ORDERS, TablePattern("shop.items")), rules=(rule,))

    assert settings.rule_text("shop", "carts") == "left out"
    assert settings.rule_text("shop", "items") == ""
    assert settings.rule_text("shop", "orders") == (
        '{"columns": ["id", "code"], "masks": {"code": ["truncate", 2]}, "where": "id > 1"}'
    )
