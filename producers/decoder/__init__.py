"""Decodes the replication stream into Avro records; typed Python that mypyc compiles."""

from producers.decoder.decoder import Decoder
from producers.decoder.errors import (
    CorruptBinlog,
    DecoderHalt,
    HiddenType,
    NoKeyspaceId,
    QueueStayedFull,
    RecordTooLarge,
    RolledBack,
    RuleBroken,
    ServerError,
    StatementInRowStream,
    StreamEnded,
    UnloggedCascade,
    UnsupportedColumn,
    UnsupportedEvent,
    WriteAfterEnd,
)
from producers.decoder.options import BatchSummary, DecoderOptions

__all__ = [
    "BatchSummary",
    "CorruptBinlog",
    "Decoder",
    "DecoderHalt",
    "DecoderOptions",
    "HiddenType",
    "NoKeyspaceId",
    "QueueStayedFull",
    "RecordTooLarge",
    "RolledBack",
    "RuleBroken",
    "ServerError",
    "StatementInRowStream",
    "StreamEnded",
    "UnloggedCascade",
    "UnsupportedColumn",
    "UnsupportedEvent",
    "WriteAfterEnd",
]
