"""One change stream for a sharded MySQL or MariaDB database: the public names.

Everything an application needs is imported from here. Each name is loaded when it is first used,
so that a subscriber loads neither Spark nor the producers; the names under "Spark" need the extra
`shardstream[spark]`.
"""

from typing import TYPE_CHECKING

from shardstream.installation import import_own

if TYPE_CHECKING:  # `as` makes a name public for type checkers
    from caching.client.cache import MaybeStale as MaybeStale
    from caching.client.options import CacheOptions as CacheOptions
    from caching.client.options import Codec as Codec
    from caching.client.reads import AsyncRead as AsyncRead
    from caching.client.reads import Read as Read
    from caching.errors import NotServing as NotServing
    from caching.errors import Stale as Stale
    from caching.errors import StoreUnreachable as StoreUnreachable
    from caching.errors import TooOld as TooOld
    from caching.key_map import CannotJudge as CannotJudge
    from caching.key_map import KeyMap as KeyMap
    from caching.key_map import MapperFailed as MapperFailed
    from caching.key_map import MissingColumn as MissingColumn
    from caching.key_map import RowImage as RowImage
    from caching.reading.fresh_reader import FreshReader as FreshReader
    from caching.reading.keyspace_reader import KeyspaceReader as KeyspaceReader
    from caching.reading.keyspace_reader import KeyspaceRows as KeyspaceRows
    from caching.reading.own_writes import ReadYourWrites as ReadYourWrites
    from caching.reading.reader import FreshRows as FreshRows
    from caching.stores.opening import open_store as open_store
    from databases.errors import ServerLost as ServerLost
    from databases.errors import ServerRefused as ServerRefused
    from event_token.errors import Halt as Halt
    from event_token.errors import Rebuild as Rebuild
    from event_token.errors import Retry as Retry
    from event_token.errors import ShardstreamError as ShardstreamError
    from event_token.errors import UsageError as UsageError
    from event_token.gtid_flavor import Flavor as Flavor
    from event_token.key_range import KeyRange as KeyRange
    from event_token.position import ShardPosition as ShardPosition
    from event_token.position import StreamPosition as StreamPosition
    from event_token.token import ClockUncertainty as ClockUncertainty
    from event_token.token import EventToken as EventToken
    from event_token.token import Order as Order
    from event_token.token import compare as compare
    from shardstream.cache import AsyncCache as AsyncCache
    from shardstream.cache import Cache as Cache
    from shardstream.clock import clock_from_settings as clock_from_settings
    from shardstream.status.metrics.families import SubscriberMetrics as SubscriberMetrics
    from shardstream.subscriber import Subscriber as Subscriber
    from sinks.database.database import SqlDatabase as SqlDatabase
    from sinks.database.options import DatabaseOptions as DatabaseOptions
    from sinks.lake.change_log.reading import AppliedTable as AppliedTable
    from sinks.lake.change_log.reading import ChangeLogReport as ChangeLogReport
    from sinks.lake.change_log.reading import check_changelog as check_changelog
    from sinks.lake.change_log.reading import replay_changelog as replay_changelog
    from sinks.lake.state.frontiers import TableAsOf as TableAsOf
    from sinks.lake.state.frontiers import maintain_state as maintain_state
    from sinks.lake.state.frontiers import table_as_of as table_as_of
    from sinks.lake.state.options import StateOptions as StateOptions
    from sinks.resume import PlannedBatch as PlannedBatch
    from sinks.rule.policy import OnPartial as OnPartial
    from sinks.rule.policy import OnSameKey as OnSameKey
    from sinks.rule.policy import OnTruncate as OnTruncate
    from sinks.rule.policy import OnTypeChange as OnTypeChange
    from sinks.rule.policy import RowPolicy as RowPolicy
    from sinks.rule.task_changes import FollowedTables as FollowedTables
    from sinks.rule.task_changes import TableChanges as TableChanges
    from sinks.subscriber_batches import Batches as Batches
    from sinks.table_topics.options import EnvelopeOptions as EnvelopeOptions
    from sinks.table_topics.options import TopicOptions as TopicOptions
    from spark_consumers.change_log import ChangeLogProgress as ChangeLogProgress
    from spark_consumers.change_log import run_changelog as run_changelog
    from spark_consumers.database import run_database as run_database
    from spark_consumers.database import run_database_locally as run_database_locally
    from spark_consumers.latest_changes import latest_changes as latest_changes
    from spark_consumers.latest_changes import merge_condition as merge_condition
    from spark_consumers.latest_changes import sequence_by as sequence_by
    from spark_consumers.session import build_session as build_session
    from spark_consumers.session import register as register
    from spark_consumers.sink_query import SinkProgress as SinkProgress
    from spark_consumers.state import run_state as run_state
    from spark_consumers.state import state_frame as state_frame
    from spark_consumers.table_topics import run_table_topics as run_table_topics
    from topics.arrow.event_batches import EventBatch as EventBatch
    from topics.arrow.event_batches import TableRows as TableRows
    from topics.errors import BrokersUnreachable as BrokersUnreachable
    from topics.errors import CannotApply as CannotApply
    from topics.errors import CorruptRecord as CorruptRecord
    from topics.errors import LogGap as LogGap
    from topics.errors import LogRepeat as LogRepeat
    from topics.errors import LogShrank as LogShrank
    from topics.errors import NoBrokerAnswers as NoBrokerAnswers
    from topics.errors import PositionTooOld as PositionTooOld
    from topics.errors import ProgressBroken as ProgressBroken
    from topics.errors import RowImageMissing as RowImageMissing
    from topics.errors import RowsNotReadable as RowsNotReadable
    from topics.errors import StartNotReached as StartNotReached
    from topics.errors import UnknownEnvelope as UnknownEnvelope
    from topics.kafka.client import ClientConfig as ClientConfig
    from topics.keyspace.topology import ReshardEntry as ReshardEntry
    from topics.keyspace.topology import ReshardState as ReshardState
    from topics.keyspace.topology import ShardEntry as ShardEntry
    from topics.keyspace.topology import ShardState as ShardState
    from topics.keyspace.topology import TableVindex as TableVindex
    from topics.keyspace.topology import Topology as Topology
    from topics.keyspace.topology import read_topology as read_topology
    from topics.keyspace.topology import watch_topology as watch_topology
    from topics.keyspace.vindexes import vindex_named as vindex_named
    from topics.named_readers import ReaderReports as ReaderReports
    from topics.reading.followed_shards import Wait as Wait
    from topics.reading.planner import MaxHold as MaxHold
    from topics.reading.planner import Strict as Strict
    from topics.reading.planner import Unmerged as Unmerged
    from topics.records.event_json import event_to_json_dict as event_to_json_dict
    from topics.records.event_json import event_to_json_text as event_to_json_text
    from topics.records.table_shape import Column as Column
    from topics.records.table_shape import TableShape as TableShape
    from topics.records.vevent import EventType as EventType
    from topics.records.vevent import InvalidDate as InvalidDate
    from topics.records.vevent import Op as Op
    from topics.records.vevent import Row as Row
    from topics.records.vevent import Value as Value
    from topics.records.vevent import VEvent as VEvent
    from topics.start.start_forms import Start as Start
    from topics.stream.subscriber import ReaderStats as ReaderStats

# Name by name, the module that defines it: the imports above, for run time.
_MODULES = {
    # The stream: a subscriber, how it waits for slow shards, and where it starts.
    "Subscriber": "shardstream.subscriber",
    "SubscriberMetrics": "shardstream.status.metrics.families",
    "ReaderStats": "topics.stream.subscriber",
    "ClientConfig": "topics.kafka.client",
    "Start": "topics.start.start_forms",
    "Strict": "topics.reading.planner",
    "MaxHold": "topics.reading.planner",
    "Unmerged": "topics.reading.planner",
    "Wait": "topics.reading.followed_shards",
    "ReaderReports": "topics.named_readers",
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
    "clock_from_settings": "shardstream.clock",
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
    "watch_topology": "topics.keyspace.topology",
    "vindex_named": "topics.keyspace.vindexes",
    # Caches of rows, what their loaders read through, and their stores.
    "Cache": "shardstream.cache",
    "AsyncCache": "shardstream.cache",
    "MaybeStale": "caching.client.cache",
    "CacheOptions": "caching.client.options",
    "Codec": "caching.client.options",
    "Read": "caching.client.reads",
    "AsyncRead": "caching.client.reads",
    "open_store": "caching.stores.opening",
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
    "FreshRows": "caching.reading.reader",
    "KeyspaceReader": "caching.reading.keyspace_reader",
    "KeyspaceRows": "caching.reading.keyspace_reader",
    "NotServing": "caching.errors",
    "ReadYourWrites": "caching.reading.own_writes",
    "Stale": "caching.errors",
    "TooOld": "caching.errors",
    "ServerLost": "databases.errors",
    "ServerRefused": "databases.errors",
    # Arrow batches of a subscriber; without Spark.
    "EventBatch": "topics.arrow.event_batches",
    "TableRows": "topics.arrow.event_batches",
    # Spark: the data source, the change log and queries over it.
    "register": "spark_consumers.session",
    "build_session": "spark_consumers.session",
    "run_changelog": "spark_consumers.change_log",
    # A second database that follows; all but run_database work without Spark.
    "run_database": "spark_consumers.database",
    "run_database_locally": "spark_consumers.database",
    "Batches": "sinks.subscriber_batches",
    "FollowedTables": "sinks.rule.task_changes",
    "SqlDatabase": "sinks.database.database",
    "DatabaseOptions": "sinks.database.options",
    "TableChanges": "sinks.rule.task_changes",
    "PlannedBatch": "sinks.resume",
    "run_table_topics": "spark_consumers.table_topics",
    "TopicOptions": "sinks.table_topics.options",
    "StateOptions": "sinks.lake.state.options",
    "RowPolicy": "sinks.rule.policy",
    "OnPartial": "sinks.rule.policy",
    "OnSameKey": "sinks.rule.policy",
    "OnTruncate": "sinks.rule.policy",
    "OnTypeChange": "sinks.rule.policy",
    "EnvelopeOptions": "sinks.table_topics.options",
    "SinkProgress": "spark_consumers.sink_query",
    "ChangeLogProgress": "spark_consumers.change_log",
    "check_changelog": "sinks.lake.change_log.reading",
    "ChangeLogReport": "sinks.lake.change_log.reading",
    "replay_changelog": "sinks.lake.change_log.reading",
    "AppliedTable": "sinks.lake.change_log.reading",
    "run_state": "spark_consumers.state",
    "state_frame": "spark_consumers.state",
    "table_as_of": "sinks.lake.state.frontiers",
    "TableAsOf": "sinks.lake.state.frontiers",
    "maintain_state": "sinks.lake.state.frontiers",
    # Users' own MERGE and AUTO CDC.
    "latest_changes": "spark_consumers.latest_changes",
    "merge_condition": "spark_consumers.latest_changes",
    "sequence_by": "spark_consumers.latest_changes",
    "CannotApply": "topics.errors",
}

# What needs no more than this extra, although Spark's brings it too.
_OF_ARROW = {"EventBatch", "TableRows"}

__all__ = list(_MODULES)


if not TYPE_CHECKING:  # a type checker must refuse a name that is not imported above

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        extra = "arrow" if name in _OF_ARROW else None
        value = globals()[name] = getattr(import_own(_MODULES[name], extra), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
