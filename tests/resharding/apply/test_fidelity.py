"""Filtered replication preserves every value of every column type."""

import pytest

from resharding.apply.applier import ApplierSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import run_statements
from tests.producers.decoder.case_files import Case, all_cases
from tests.resharding.accounts import resharder_of
from tests.resharding.shards import (
    applying,
    begin,
    copy_definitions,
    sources_of,
    table_contents,
    wait_applied,
)
from topics.keyspace.topology import TableVindex

# The cases about column values that a reshard accepts: tables with a primary key and a column to
# shard by, and one definition throughout.
VALUE_CASES = frozenset(
    (
        *("binaries", "bits", "changed_key", "charset_central_europe", "charset_cyrillic"),
        *("charset_east_asia", "charset_gb18030", "charset_keys", "charset_labels"),
        *("charset_other_scripts", "charset_swe7", "charset_west", "compressed_columns"),
        *("compressed_events", "dates", "decimals", "enums_and_sets", "floats", "geometry"),
        *("generated_columns", "geometry_srid", "integers", "json_alias", "json_mariadb"),
        *("json_mysql", "many_columns", "many_labels", "invalid_dates", "invalid_dates_key"),
        *("savepoints", "set_statement", "statement_charsets", "strings", "times", "timestamps"),
        *("triggers", "uuid_and_inet", "uuid_and_inet_as_bytes", "uuid_key", "uuid_versions"),
        *("decimal_of_38_places", "functional_indexes", "inet6_forms", "long_unique_names"),
        *("vector", "wide_charsets"),
    )
)
# More rows of the same kind, with values that the cases lack.
EXTREMES = (
    """CREATE TABLE all_types (id BIGINT UNSIGNED PRIMARY KEY AUTO_INCREMENT,
    i8 TINYINT, u64 BIGINT UNSIGNED, b1 BIT(1), b64 BIT(64), d DECIMAL(65,30), f FLOAT,
    df DOUBLE, y YEAR, dt DATETIME(6), ts TIMESTAMP(6) NULL, t TIME(6), da DATE,
    e ENUM('1','2','x') , s SET('a','b','c d'), c CHAR(5) CHARACTER SET latin1,
    v VARCHAR(50) CHARACTER SET utf8mb4, vb VARBINARY(20), bi BINARY(4), bl MEDIUMBLOB,
    tx LONGTEXT, UNIQUE KEY (v))""",
    "SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES'",
    "INSERT INTO all_types (id) VALUES (0)",
    """INSERT INTO all_types VALUES (18446744073709551615, -128, 18446744073709551615, 1,
    b'1111111111111111111111111111111111111111111111111111111111111111',
    -99999999999999999999999999999999999.999999999999999999999999999999, 3.4028234e38,
    -1.7976931348623157e308, 0, '9999-12-31 23:59:59.999999', '1970-01-01 00:00:01.000001',
    '-838:59:58.999999', '0000-00-00', '2', 'a,c d', 'é', _utf8mb4 x'F09F9880275C00',
    x'00FF275C', x'0102', REPEAT(x'00FF', 40000), REPEAT(_utf8mb4 x'C3A9', 100000))""",
    """INSERT INTO all_types (id, f, df, y, e, s, c, v, vb, bi, bl, tx, d, t) VALUES
    (5, 1.17549e-38, 5e-324, 2155, 'bad', '', '', '', '', '', '', '', 0, '00:00:00.000001'),
    (6, 0.1, -0.0e0, 1901, 1, 'c d', ' a', 'line\n\\\\', x'5C', x'00', NULL, '%s', 1e-30, NULL)""",
    "UPDATE all_types SET id = 7, v = 'moved' WHERE id = 6",
    "INSERT INTO all_types (id, v) VALUES (8, 'gone'), (9, 'stays')",
    "DELETE FROM all_types WHERE id = 8",
)


def _sharded(database: DatabaseFixture, schema: str, table: str) -> TableVindex:
    """Any vindex over any column will do: all rows go to the single target."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = %s "
            "AND table_name = %s AND (data_type LIKE '%%int' OR data_type LIKE '%%char' OR "
            "data_type LIKE '%%binary' OR data_type LIKE '%%blob' OR data_type LIKE '%%text') "
            "ORDER BY ordinal_position",
            (schema, table),
        )
        columns = cursor.fetchall()
    assert columns, f"{schema}.{table} has nothing to shard by"
    return TableVindex(schema, table, (columns[0][0],), "xxhash")


@pytest.mark.parametrize("family", ["mysql_a", "mariadb_a"])
def test_values_arrive_exactly(
    family: str, kafka: KafkaCluster, keyspace: str, request: pytest.FixtureRequest
) -> None:
    """The rows of every case are the same on the target as on the source."""
    source: DatabaseFixture = request.getfixturevalue(family)
    target: DatabaseFixture = (
        request.getfixturevalue("mysql_b")
        if family == "mysql_a"
        else request.getfixturevalue("start_mariadb")()
    )
    cases = [c for c in all_cases() if c.name in VALUE_CASES and c.flavor.value == source.flavor]
    with sources_of({"-": source}, kafka, keyspace) as sources:
        made = _run_cases(source, target, cases)
        vindexes = tuple(_sharded(source, schema, table) for schema, table in made)
        plan = sources.plan(("-.2",), vindexes, agreed_seqs=sources.last_seqs())
        begin(plan, {"-.2": target})
        with applying(ApplierSettings(plan, resharder_of(target, "-.2"), sources.kafka)) as applier:
            wait_applied(sources, plan.reshard_id, {"-.2": target}, [applier])

        for schema, table in made:
            there = table_contents(source, schema, table)
            assert table_contents(target, schema, table) == there, (schema, table)


def _run_cases(
    source: DatabaseFixture, target: DatabaseFixture, cases: list[Case]
) -> list[tuple[str, str]]:
    """Run each case in a separate schema, and create its tables on the target."""
    made = []
    for statements in [*(case.statements for case in cases), EXTREMES]:
        schema = source.new_database()
        run_statements(source, schema, statements)
        made += [(schema, table) for table in copy_definitions(schema, source, target)]
    return made
