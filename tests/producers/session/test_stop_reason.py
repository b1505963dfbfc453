"""What a producer leaves when an error ends it."""

from producers.errors import BinlogPurged
from producers.session.stop_reason import TEXT_MAX, stop_reason


def test_a_reason_is_one_short_line_without_credentials() -> None:
    """The page shows it to everybody who may look at the fleet."""
    error = BinlogPurged("db-b:\n  gone; https://me:secret@registry/ says so " + "x" * 2 * TEXT_MAX)

    reason = stop_reason(error, 7)

    assert (reason.at_us, reason.error) == (7, "BinlogPurged")
    assert reason.text.startswith("db-b: gone; https://***@registry/ says so xxx")
    assert len(reason.text) == TEXT_MAX
