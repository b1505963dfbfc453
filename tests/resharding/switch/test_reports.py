"""What becomes of the reports of appliers whose reshards are over."""

import logging

import pytest

from event_token.errors import Retry
from resharding.switch import complete
from resharding.switch.shard_writes import SwitchSettings
from topics.kafka.client import ClientConfig


def test_reports_that_stay_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A reshard is over, whether or not its appliers' reports could be removed."""

    def read_topology(_config: ClientConfig, keyspace: str) -> None:
        raise Retry(f"reading {keyspace}.topology: no broker answers")

    monkeypatch.setattr(complete, "read_topology", read_topology)
    nobody = ClientConfig({"bootstrap.servers": "127.0.0.1:1"})
    settings = SwitchSettings("r1", "shop", server_of=lambda _: None, accounts=(), kafka=nobody)  # type: ignore[arg-type,return-value]

    with caplog.at_level(logging.WARNING):
        complete.remove_reports(settings)

    assert "stay in the readers' topic: reading shop.topology: no broker answers" in caplog.text
