"""One change stream for a sharded MySQL or MariaDB database: the public names.

Everything an application needs is imported from here. Each name is loaded when it is first used,
so that a subscriber loads neither Spark nor the producers; the names under "Spark" need the extra
`shardstream[spark]`.
"""

from typing import TYPE_CHECKING

from shardstream.installation import import_own

if TYPE_CHECKING:
    from caching.client.answers import Answer
    from caching.client.codecs import Codec
    from caching.client.options import CacheOptions
    from caching.client.reads import AsyncRead, Read
    from caching.errors import Stale, StoreUnreachable
    from caching.key_map import CannotJudge, KeyMap, MapperFailed, MissingColumn, RowImage
    from caching.reading.fresh_reader import FreshReader, FreshRows
    from caching.reading.own_writes import ReadYourWrites
    from caching.stores.opening import open_async_store, open_store
    from databases.errors import ServerLost, ServerRefused
    from event_token.errors import Halt, Rebuild, Retry, ShardstreamError, UsageError
    from event_token.gtid_flavor import Flavor
    from event_token.key_range import KeyRange
    from event_token.position import ShardPosition, StreamPosition
    from event_token.token import ClockUncertainty, EventToken, Order, compare
    from shardstream.cache import AsyncCache, Cache
    from shardstream.status.metrics.subscriber import SubscriberMetrics
    from shardstream.subscriber import Subscriber
    from spark_consumers.applying.changes import TableChanges
    from spark_consumers.applying.tables import AppliedTable
    from spark_consumers.applying.task_changes import Following
    from spark_consumers.change_log.check import ChangeLogReport, check_changelog
    from spark_consumers.change_log.replay import replay_changelog
    from spark_consumers.change_log.run import ChangeLogProgress, run_changelog
    from spark_consumers.change_log.state import state_as_of
    from spark_consumers.current_state.query.as_of import TableAsOf, table_as_of
    from spark_consumers.current_state.query.run import run_state, state_frame
    from spark_consumers.current_state.query.upkeep import maintain_state
    from spark_consumers.decoding.event_batches import EventBatch, TableRows
    from spark_consumers.errors import CannotApply
    from spark_consumers.second_database.database import SqlDatabase, TargetOptions
    from spark_consumers.second_database.run import run_database
    from spark_consumers.session import build_session, register
    from spark_consumers.sink_query.latest_changes import (
        latest_changes,
        merge_condition,
        sequence_by,
    )
    from spark_consumers.sink_query.resume import PlannedBatch
    from spark_consumers.sink_query.run import SinkProgress
    from spark_consumers.sink_query.subscriber_batches import Batches
    from spark_consumers.table_topics.envelope.options import EnvelopeOptions
    from spark_consumers.table_topics.options import TopicOptions
    from spark_consumers.table_topics.run import run_table_topics
    from topics.errors import (
        BrokersUnreachable,
        CorruptRecord,
        LogGap,
        LogRepeat,
        LogShrank,
        NoBrokerAnswers,
        PositionTooOld,
        ProgressBroken,
        RowImageMissing,
        RowsNotReadable,
        StartNotReached,
        UnknownEnvelope,
    )
    from topics.kafka.client import ClientConfig
    from topics.keyspace.topology import (
        ReshardEntry,
        ReshardState,
        ShardEntry,
        ShardState,
        TableVindex,
        Topology,
        read_topology,
    )
    from topics.keyspace.topology_watch import watch_topology
    from topics.keyspace.vindexes import vindex_named
    from topics.readers.reporter import ReaderReports
    from topics.reading.followed_shards import Wait
    from topics.reading.planner import MaxHold, Strict
    from topics.reading.unmerged import Unmerged
    from topics.records.event_json import event_to_json_dict, event_to_json_text
    from topics.records.table_shape import Column, TableShape
    from topics.records.vevent import EventType, InvalidDate, Op, Row, Value, VEvent
    from topics.start.start_forms import Start
    from topics.stream.subscriber import ReaderStats

# Name by name, the module that defines it: the imports above, for run time.
_MODULES = {
    # The stream: a subscriber, how it waits for slow shards, and where it starts.
    "Subscriber": "shardstream.subscriber",
    "SubscriberMetrics": "shardstream.status.metrics.subscriber",
    "ReaderStats": "topics.stream.subscriber",
    "ClientConfig": "topics.kafka.client",
    "Start": "topics.start.start_forms",
    "Strict": "topics.reading.planner",
    "MaxHold": "topics.reading.planner",
    "Unmerged": "topics.reading.unmerged",
    "Wait": "topics.reading.followed_shards",
    "ReaderReports": "topics.readers.reporter",
    # Events and what they hold.
    "VEvent": "topics.records.vevent",
    "EventType": "topics.records.vevent",
    "Op": "topics.records.vevent",
    "Row": "topics.records.vevent",
    "Value": "topics.records.vevent",
    "InvalidDate": "topics.records.vevent",
    "TableShape": "topics.records.table_shape",
    "Column": "topics.records.table_shape",
    "event_to_json_dict": "topics.records.event_json",
    "event_to_json_text": "topics.records.event_json",
    # Order and positions.
    "EventToken": "event_token.token",
    "Order": "event_token.token",
    "compare": "event_token.token",
    "ClockUncertainty": "event_token.token",
    "StreamPosition": "event_token.position",
    "ShardPosition": "event_token.position",
    "KeyRange": "event_token.key_range",
    "Flavor": "event_token.gtid_flavor",
    # Shards of a keyspace.
    "Topology": "topics.keyspace.topology",
    "ShardEntry": "topics.keyspace.topology",
    "ShardState": "topics.keyspace.topology",
    "ReshardEntry": "topics.keyspace.topology",
    "ReshardState": "topics.keyspace.topology",
    "TableVindex": "topics.keyspace.topology",
    "read_topology": "topics.keyspace.topology",
    "watch_topology": "topics.keyspace.topology_watch",
    "vindex_named": "topics.keyspace.vindexes",
    # Caches of rows, what their loaders read through, and their stores.
    "Cache": "shardstream.cache",
    "AsyncCache": "shardstream.cache",
    "Answer": "caching.client.answers",
    "CacheOptions": "caching.client.options",
    "Codec": "caching.client.codecs",
    "Read": "caching.client.reads",
    "AsyncRead": "caching.client.reads",
    "open_store": "caching.stores.opening",
    "open_async_store": "caching.stores.opening",
    "StoreUnreachable": "caching.errors",
    "KeyMap": "caching.key_map",
    "RowImage": "caching.key_map",
    "CannotJudge": "caching.key_map",
    "MissingColumn": "caching.key_map",
    "MapperFailed": "caching.key_map",
    # Errors, by what the caller does about them, and those that a reader may meet by name.
    "ShardstreamError": "event_token.errors",
    "UsageError": "event_token.errors",
    "Retry": "event_token.errors",
    "Rebuild": "event_token.errors",
    "Halt": "event_token.errors",
    "PositionTooOld": "topics.errors",
    "LogGap": "topics.errors",
    "LogRepeat": "topics.errors",
    "LogShrank": "topics.errors",
    "CorruptRecord": "topics.errors",
    "UnknownEnvelope": "topics.errors",
    "ProgressBroken": "topics.errors",
    "RowImageMissing": "topics.errors",
    "NoBrokerAnswers": "topics.errors",
    "BrokersUnreachable": "topics.errors",
    "RowsNotReadable": "topics.errors",
    "StartNotReached": "topics.errors",
    # Fresh reads: rows that say what they hold, and a session's own writes.
    "FreshReader": "caching.reading.fresh_reader",
    "FreshRows": "caching.reading.fresh_reader",
    "ReadYourWrites": "caching.reading.own_writes",
    "Stale": "caching.errors",
    "ServerLost": "databases.errors",
    "ServerRefused": "databases.errors",
    # Arrow batches of a subscriber; without Spark.
    "EventBatch": "spark_consumers.decoding.event_batches",
    "TableRows": "spark_consumers.decoding.event_batches",
    # Spark: the data source, the change log and queries over it.
    "register": "spark_consumers.session",
    "build_session": "spark_consumers.session",
    "run_changelog": "spark_consumers.change_log.run",
    # A second database that follows; all but run_database work without Spark.
    "run_database": "spark_consumers.second_database.run",
    "Batches": "spark_consumers.sink_query.subscriber_batches",
    "Following": "spark_consumers.applying.task_changes",
    "SqlDatabase": "spark_consumers.second_database.database",
    "TargetOptions": "spark_consumers.second_database.database",
    "TableChanges": "spark_consumers.applying.changes",
    "PlannedBatch": "spark_consumers.sink_query.resume",
    "run_table_topics": "spark_consumers.table_topics.run",
    "TopicOptions": "spark_consumers.table_topics.options",
    "EnvelopeOptions": "spark_consumers.table_topics.envelope.options",
    "SinkProgress": "spark_consumers.sink_query.run",
    "ChangeLogProgress": "spark_consumers.change_log.run",
    "check_changelog": "spark_consumers.change_log.check",
    "ChangeLogReport": "spark_consumers.change_log.check",
    "replay_changelog": "spark_consumers.change_log.replay",
    "AppliedTable": "spark_consumers.applying.tables",
    "state_as_of": "spark_consumers.change_log.state",
    "run_state": "spark_consumers.current_state.query.run",
    "state_frame": "spark_consumers.current_state.query.run",
    "table_as_of": "spark_consumers.current_state.query.as_of",
    "TableAsOf": "spark_consumers.current_state.query.as_of",
    "maintain_state": "spark_consumers.current_state.query.upkeep",
    # Users' own MERGE and AUTO CDC.
    "latest_changes": "spark_consumers.sink_query.latest_changes",
    "merge_condition": "spark_consumers.sink_query.latest_changes",
    "sequence_by": "spark_consumers.sink_query.latest_changes",
    "CannotApply": "spark_consumers.errors",
}

# What needs no more than this extra, although Spark's brings it too.
_OF_ARROW = {"EventBatch", "TableRows"}

__all__ = [
    "Answer",
    "AppliedTable",
    "AsyncCache",
    "AsyncRead",
    "Batches",
    "BrokersUnreachable",
    "Cache",
    "CacheOptions",
    "CannotApply",
    "CannotJudge",
    "ChangeLogProgress",
    "ChangeLogReport",
    "ClientConfig",
    "ClockUncertainty",
    "Codec",
    "Column",
    "CorruptRecord",
    "EnvelopeOptions",
    "EventBatch",
    "EventToken",
    "EventType",
    "Flavor",
    "Following",
    "FreshReader",
    "FreshRows",
    "Halt",
    "InvalidDate",
    "KeyMap",
    "KeyRange",
    "LogGap",
    "LogRepeat",
    "LogShrank",
    "MapperFailed",
    "MaxHold",
    "MissingColumn",
    "NoBrokerAnswers",
    "Op",
    "Order",
    "PlannedBatch",
    "PositionTooOld",
    "ProgressBroken",
    "Read",
    "ReadYourWrites",
    "ReaderReports",
    "ReaderStats",
    "Rebuild",
    "ReshardEntry",
    "ReshardState",
    "Retry",
    "Row",
    "RowImage",
    "RowImageMissing",
    "RowsNotReadable",
    "ServerLost",
    "ServerRefused",
    "ShardEntry",
    "ShardPosition",
    "ShardState",
    "ShardstreamError",
    "SinkProgress",
    "SqlDatabase",
    "Stale",
    "Start",
    "StartNotReached",
    "StoreUnreachable",
    "StreamPosition",
    "Strict",
    "Subscriber",
    "SubscriberMetrics",
    "TableAsOf",
    "TableChanges",
    "TableRows",
    "TableShape",
    "TableVindex",
    "TargetOptions",
    "TopicOptions",
    "Topology",
    "UnknownEnvelope",
    "Unmerged",
    "UsageError",
    "VEvent",
    "Value",
    "Wait",
    "build_session",
    "check_changelog",
    "compare",
    "event_to_json_dict",
    "event_to_json_text",
    "latest_changes",
    "maintain_state",
    "merge_condition",
    "open_async_store",
    "open_store",
    "read_topology",
    "register",
    "replay_changelog",
    "run_changelog",
    "run_database",
    "run_state",
    "run_table_topics",
    "sequence_by",
    "state_as_of",
    "state_frame",
    "table_as_of",
    "vindex_named",
    "watch_topology",
]


if not TYPE_CHECKING:  # a type checker must refuse a name that is not imported above

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used."""
        if name not in _MODULES:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        extra = "arrow" if name in _OF_ARROW else None
        value = globals()[name] = getattr(import_own(_MODULES[name], extra), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
