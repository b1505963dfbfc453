"""Which databases count when a producer looks for END at the end of its log."""

import pytest

from producers.start import choose_start
from producers.start.choose_start import is_sharded
from topics.kafka.client import ClientConfig
from topics.keyspace.topology import ShardEntry, TableVindex, Topology

CONFIG = ClientConfig({"bootstrap.servers": "kafka:9092"})
ORDERS = TableVindex("shop", "orders", ("customer",), "hash")


@pytest.mark.parametrize(
    ("vindexes", "database", "expected"),
    [
        ((), "shop", True),
        ((ORDERS,), "shop", True),
        ((ORDERS,), "metrics", False),
    ],
)
def test_databases_that_count(
    monkeypatch: pytest.MonkeyPatch,
    vindexes: tuple[TableVindex, ...],
    database: str,
    expected: bool,
) -> None:
    """Without vindexes the search ends at the newest row instead of reading the whole log."""
    topology = Topology("commerce", 0, (ShardEntry("-"),), vindexes)
    monkeypatch.setattr(choose_start, "read_topology", lambda *_: topology)

    assert is_sharded(CONFIG, "commerce", database) is expected
