"""Named readers whose account lacks grants, on a broker that checks them."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in __all__
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from shardstream.local import kafka_cluster
from tests.topics.shard_writer import TIMEOUT_S, ShardWriter, provision
from tests.topics.subscribing import taken
from topics import named_readers
from topics.kafka.client import ClientConfig, Deadline, open_admin
from topics.kafka.provisioning import provision_readers
from topics.stream.subscriber import StreamSubscriber

pytestmark = pytest.mark.full

FAR_US = 60_000_000
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture
def checking(
    real_servers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ClientConfig]:
    """A broker that refuses what an ACL denies."""
    settings = kafka_cluster.broker_settings
    monkeypatch.setattr(
        kafka_cluster, "broker_settings", lambda *nodes: {**settings(*nodes), **AUTHORIZER}
    )
    cluster = kafka_cluster.KafkaCluster(tmp_path, die_with_parent=True)
    try:
        cluster.start()
        yield ClientConfig({"bootstrap.servers": cluster.bootstrap_servers})
    finally:
        cluster.kill()


def deny(config: ClientConfig, kind: ResourceType, name: str) -> None:
    """Deny everything on a topic or a group."""
    binding = AclBinding(
        kind,
        name,
        ResourcePatternType.LITERAL,
        "User:ANONYMOUS",
        "*",
        AclOperation.ALL,
        AclPermissionType.DENY,
    )
    admin = open_admin(config)
    for made in admin.create_acls([binding]).values():
        made.result(TIMEOUT_S)


def test_a_reader_that_may_not_report_reads_everything(
    checking: ClientConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the grant on topic or group it is warned of once, by name, and nothing else."""
    monkeypatch.setattr(named_readers, "REPORT_S", 0.1)
    provision(checking, "shop", ["-"])
    provision_readers(checking, "shop")
    writer = ShardWriter(checking, "shop", "-")
    writer.commit((0, 3))
    writer.heartbeat(FAR_US)
    writer.close()
    deny(checking, ResourceType.TOPIC, "shop.readers")
    deny(checking, ResourceType.GROUP, "shardstream.shop.billing")

    with (
        caplog.at_level(logging.WARNING, "shardstream.readers"),
        StreamSubscriber(
            "shop", start="earliest", config=checking, name="billing", idle_timeout_s=0.3
        ) as stream,
    ):
        events = taken(stream, 3)
        deadline = Deadline(TIMEOUT_S)
        while stream.reports is None or stream.reports.failed < 10:
            assert list(stream) == []
            assert not deadline.passed, stream.reports

    said = [r.getMessage() for r in caplog.records if r.name == "shardstream.readers"]
    assert [event.seq for event in events] == [1, 2, 3]
    assert stream.reports.written == 0
    assert len(said) == 2
    assert any("shop.readers" in text and "TOPIC_AUTHORIZATION_FAILED" in text for text in said)
    assert any("shardstream.shop.billing" in text for text in said)
