"""Time for reports on a busy machine."""

import pytest

from tests.topics.shard_writer import TIMEOUT_S
from topics.readers import group_offsets, reporter


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for reports that brokers under load answer late; a test may take its own limits."""
    monkeypatch.setattr(reporter, "CLOSE_S_MAX", TIMEOUT_S)
    monkeypatch.setattr(reporter, "DELIVERY_S_MAX", TIMEOUT_S)
    monkeypatch.setattr(group_offsets, "REQUEST_S_MAX", TIMEOUT_S)
