"""From when on a shard is late, or silent: one rule for `status`, the page, metrics and alerts."""

from typing import Final

# A producer advances its watermark every 250 ms, so this is forty missing heartbeats.
SILENT_MS: Final = 10_000
# A shard that is late by this much keeps up no longer; a stall of a second or two is everyday.
STILL_MS: Final = 3_000
