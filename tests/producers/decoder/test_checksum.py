"""CRC32 by tables is zlib's, for every length and beginning."""

import random
import zlib

import pytest

from producers.decoder.events.format_event import Checksum


@pytest.mark.parametrize("by_table", [True, False])
def test_sums_are_those_of_zlib(by_table: bool) -> None:
    """Any slice of any bytes, short and long ones."""
    checksum = Checksum(by_table)
    rng = random.Random(5)
    whole = rng.randbytes(3000)
    spans = [(0, length) for length in range(130)]
    spans += [(begin, begin + rng.randint(0, 1500)) for begin in range(0, 1400, 7)]

    for begin, end in spans:
        assert checksum.of(whole, begin, end) == zlib.crc32(whole[begin:end])
