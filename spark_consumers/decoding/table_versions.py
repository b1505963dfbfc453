"""Looks up the newest registered version of a table, which decides the typed columns."""

import json

from event_token.errors import UsageError
from topics.kafka.client import ClientConfig
from topics.kafka.partition_reader import read_to_end
from topics.names import SCHEMAS_TOPIC
from topics.records.table_shape import TableShape, shape_of
from topics.schemas.confluent import RegistrySchemaIds


def newest_version(
    kafka: ClientConfig, registry_url: str | None, database: str, table: str
) -> tuple[TableShape, int]:
    """Return the newest registered version of a table and its schema id.

    UsageError when no row of the table has been logged yet.
    """
    if registry_url is None:
        found = _newest_in_topic(kafka, database, table)
    else:
        found = RegistrySchemaIds(registry_url).newest_of(database, table)
    shape = None if found is None else shape_of(json.loads(found[1]))
    if found is None or shape is None:
        raise UsageError(
            f"option table: no row of {database}.{table} has been logged yet, so its columns are "
            f"unknown: start the query once the table has rows, or leave out option table"
        )
    return shape, found[0]


def _newest_in_topic(kafka: ClientConfig, database: str, table: str) -> tuple[int, str] | None:
    # If two producers registered a schema at once, its id is the offset of the first record.
    ids: dict[str, int] = {}
    newest: str | None = None
    for record in read_to_end(kafka, SCHEMAS_TOPIC):
        text = (record.value or b"").decode()
        ids.setdefault(text, record.offset)
        schema = json.loads(text)
        if (schema.get("database"), schema.get("table")) == (database, table):
            newest = text
    return None if newest is None else (ids[newest], newest)
