"""The last record of a stream: it ends a batch, so that no test waits for one that is idle."""

from tests.spark_consumers.shop import Change, Shop
from tests.topics.shard_writer import CELL_US

END = "-- the end"


def end(shop: Shop) -> None:
    """Write the last record, and promise that nothing older comes."""
    shop.writers["-80"].write([Change(shop.now_us, statement=END)])
    shop.now_us += CELL_US
    for writer in shop.writers.values():
        writer.promise(shop.now_us)
