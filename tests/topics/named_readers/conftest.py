"""Time for reports on a busy machine."""

import pytest

from tests.topics.shard_writer import TIMEOUT_S
from topics import named_readers


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for reports that brokers under load answer late; a test may take its own limits."""
    monkeypatch.setattr(named_readers, "CLOSE_S_MAX", TIMEOUT_S)
    monkeypatch.setattr(named_readers, "DELIVERY_S_MAX", TIMEOUT_S)
    monkeypatch.setattr(named_readers, "REQUEST_S_MAX", TIMEOUT_S)
