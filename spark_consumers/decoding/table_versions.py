"""Looks up the newest registered version of a table, which decides the typed columns."""

import json

from event_token.errors import UsageError
from topics.kafka.client import ClientConfig, open_admin
from topics.kafka.partition_reader import read_to_end
from topics.kafka.requests import retry_request
from topics.names import SCHEMAS_TOPIC, keyspaces_of
from topics.records.table_shape import TableShape, shape_of
from topics.schemas.confluent import RegistrySchemaIds

_Found = tuple[int, str] | None


def newest_version(
    kafka: ClientConfig, registry_url: str | None, keyspace: str, database: str, table: str
) -> tuple[TableShape, int]:
    """Return the newest registered version of a keyspace's table and its schema id.

    A version that an earlier producer registered does not name its keyspace. It counts where the
    keyspace has no newer one, and is alone on this Kafka. UsageError when no row of the table has
    been logged yet, or only such versions are known beside other keyspaces.
    """
    if registry_url is None:
        own, unnamed = _newest_in_topic(kafka, keyspace, database, table)
    else:
        registry = RegistrySchemaIds(registry_url)
        own = registry.newest_of(keyspace, database, table)
        unnamed = registry.newest_of(None, database, table) if own is None else None
    found = own
    if own is None and unnamed is not None:
        _check_alone(kafka, keyspace, f"{database}.{table}")
        found = unnamed
    shape = None if found is None else shape_of(json.loads(found[1]))
    if found is None or shape is None:
        raise UsageError(
            f"option table: no row of {database}.{table} of keyspace {keyspace} has been logged "
            f"yet, so its columns are unknown: start the query once the table has rows, or leave "
            f"out option table"
        )
    return shape, found[0]


def _newest_in_topic(
    kafka: ClientConfig, keyspace: str, database: str, table: str
) -> tuple[_Found, _Found]:
    """Return the newest version that names the keyspace, and the newest that names none."""
    # If two producers registered a schema at once, its id is the offset of the first record.
    ids: dict[str, int] = {}
    newest: dict[str | None, str] = {}
    for record in read_to_end(kafka, SCHEMAS_TOPIC):
        text = (record.value or b"").decode()
        ids.setdefault(text, record.offset)
        schema = json.loads(text)
        if (schema.get("database"), schema.get("table")) == (database, table):
            newest[schema.get("keyspace")] = text

    def found(owner: str | None) -> _Found:
        return None if owner not in newest else (ids[newest[owner]], newest[owner])

    return found(keyspace), found(None)


def _check_alone(kafka: ClientConfig, keyspace: str, table: str) -> None:
    """Refuse a version without a keyspace where it may be of another keyspace's table."""
    admin = open_admin(kafka)
    topics = retry_request(
        "listing the topics", kafka, lambda timeout_s: admin.list_topics(timeout=timeout_s).topics
    )
    others = [name for name in keyspaces_of(topics) if name != keyspace]
    if others:
        raise UsageError(
            f"option table: the versions of {table} were registered by an earlier release, which "
            f"did not name the keyspace, and this Kafka has others too ({', '.join(others)}). "
            f"Upgrade the producers of {keyspace}, then change a row of the table or copy it "
            f"(shardstream copy start {keyspace} --table {table}); or leave out option table"
        )
