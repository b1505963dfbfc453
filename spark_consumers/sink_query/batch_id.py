"""Which batch, and which part of it, a sink's task writes."""

from pyspark import TaskContext

from event_token.errors import Halt

_BATCH_ID = "streaming.sql.batchId"


def batch_id() -> int:
    """Return the id of the micro-batch of the task that calls this. Halt outside of one."""
    text = _context().getLocalProperty(_BATCH_ID)
    if text is None:
        raise Halt(f"Spark's property {_BATCH_ID} is not set: sinks write in streaming queries")
    return int(text)


def task() -> int:
    """Return the number of the task that calls this: the partition that `frame.routed` chose."""
    return int(_context().partitionId())


def _context() -> TaskContext:
    found = TaskContext.get()
    if found is None:
        raise Halt("not inside a Spark task")
    return found
