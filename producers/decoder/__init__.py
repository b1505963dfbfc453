"""The replication stream to Avro records (design.md §5); typed Python that mypyc compiles."""

from producers.decoder.batch import BatchSummary
from producers.decoder.decoder import Decoder
from producers.decoder.errors import (
    CorruptBinlog,
    DecoderHalt,
    HiddenType,
    NoKeyspaceId,
    QueueStayedFull,
    RecordTooLarge,
    RuleBroken,
    ServerError,
    StatementInRowStream,
    StreamEnded,
    UnloggedCascade,
    UnsupportedColumn,
    UnsupportedEvent,
    WriteAfterEnd,
)

__all__ = [
    "BatchSummary",
    "CorruptBinlog",
    "Decoder",
    "DecoderHalt",
    "HiddenType",
    "NoKeyspaceId",
    "QueueStayedFull",
    "RecordTooLarge",
    "RuleBroken",
    "ServerError",
    "StatementInRowStream",
    "StreamEnded",
    "UnloggedCascade",
    "UnsupportedColumn",
    "UnsupportedEvent",
    "WriteAfterEnd",
]
