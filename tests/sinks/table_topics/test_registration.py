import json

import pytest

from event_token.errors import UsageError
from sinks.table_topics.envelope.table_encoder import TableEncoder
from sinks.table_topics.options import EnvelopeOptions, Format
from sinks.table_topics.registration import SubjectIds
from tests.topics.schemas.registry_server import registry_server
from topics.records.table_shape import Column, TableShape, ValueKind

OPTIONS = EnvelopeOptions("shop", "p", format=Format.DEBEZIUM_AVRO)
SHAPE = TableShape("shop", "orders", (Column("id", ValueKind.INT, "int"),), (0,))


def test_schemas_are_registered_once_under_the_topics_subjects() -> None:
    """Two encoders of a table register key and value once, and the registry's rule is kept."""
    with registry_server() as registry:
        ids = SubjectIds(registry.url)
        for _ in range(2):
            TableEncoder(SHAPE, OPTIONS, ids.register)

        assert registry.calls == [
            f"POST /subjects/p.shop.orders-{part}/versions" for part in ("key", "value")
        ]
        assert registry.subjects == {"p.shop.orders-key": {1}, "p.shop.orders-value": {2}}
        assert json.loads(registry.schemas[1])["connect.name"] == "p.shop.orders.Envelope"
        assert registry.compatibility == {}


def test_tasks_that_register_at_the_same_time_get_the_same_id() -> None:
    """Apicurio refuses all but one with 409, though the schemas are equal."""
    with registry_server() as registry:
        registry.conflicts = 1

        assert SubjectIds(registry.url).register("p.shop.orders-key", '"string"') == 1
        assert registry.subjects == {"p.shop.orders-key": {1}}


def test_a_refused_schema_names_the_subject_and_the_fix() -> None:
    """A version that the compatibility rule refuses stops with subject and remedy."""
    with registry_server() as registry:
        registry.status = 409

        with pytest.raises(UsageError, match=r"409 .*subject p\.shop\.orders-key to NONE"):
            TableEncoder(SHAPE, OPTIONS, SubjectIds(registry.url).register)
