from dataclasses import replace

import pytest

from event_token.errors import UsageError
from spark_consumers.decoding.table_versions import newest_version
from tests.spark_consumers import shop as shops
from tests.spark_consumers.shop import Shop
from tests.topics.schemas.registry_server import registry_server
from topics.records.table_shape import Column, TableShape, ValueKind, row_schema, schema_text
from topics.schemas.confluent import RegistrySchemaIds
from topics.schemas.registry import TopicSchemaIds

# A database of this module's own: the shop's typed readers share the broker.
ORDERS = replace(shops.ORDERS, database="versions")
WIDER = TableShape("versions", "orders", (*ORDERS.columns, Column("x", ValueKind.INT, "int")), (0,))
OTHER = TableShape("versions", "others", ORDERS.columns, (0,))


def texts() -> list[str]:
    """Two versions of one table, then another table."""
    return [schema_text(row_schema(shape)) for shape in (ORDERS, WIDER, OTHER)]


def test_newest_version_in_the_topic(shop: Shop) -> None:
    """The version registered last counts, with the schema id that its rows carry."""
    schema_ids = TopicSchemaIds(shop.config)
    ids = [schema_ids.register(text) for text in texts()]

    assert newest_version(shop.config, None, "versions", "orders") == (WIDER, ids[1])


def test_newest_version_in_a_registry(shop: Shop) -> None:
    """The same from a Confluent-compatible registry; a table without rows is refused by name."""
    with registry_server() as registry:
        schema_ids = RegistrySchemaIds(registry.url)
        ids = [schema_ids.register(text) for text in texts()]

        assert newest_version(shop.config, registry.url, "versions", "orders") == (WIDER, ids[1])
        with pytest.raises(UsageError, match=r"no row of versions\.missing has been logged"):
            newest_version(shop.config, registry.url, "versions", "missing")
