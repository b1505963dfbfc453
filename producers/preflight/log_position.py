"""Whether a shard's log can be continued: what a producer would find at its start, without one."""

from contextlib import closing
from dataclasses import dataclass, field

from event_token.errors import Rebuild, Retry, ShardstreamError
from producers.errors import Problem
from producers.servers.server_list import ServerList
from producers.settings import ShardProducerSettings
from producers.start.choose_start import check_continues
from topics.kafka.errors import TopicMissing
from topics.names import ShardTopics
from topics.progress.committed_tail import last_progress
from topics.records.schema_ids import SchemaIds

_RUNBOOK = "docs/runbook.md#errors-that-stop-a-process"


@dataclass(slots=True)
class LogFindings:
    """What keeps a log from being continued, and what a producer would note."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def log_findings(settings: ShardProducerSettings, schema_ids: SchemaIds) -> LogFindings:
    """Compare where the log ends with what the servers have, lack and have purged.

    A log that does not exist yet, or is empty, can be begun. The producer may run meanwhile: the
    log's end is read before the servers. Raises what `last_progress` does.
    """
    topics = ShardTopics(settings.keyspace, settings.shard)
    try:
        progress = last_progress(settings.kafka, topics, schema_ids)
    except TopicMissing:
        return LogFindings()
    if progress is None:
        return LogFindings()
    try:
        with closing(ServerList.open(settings)) as servers:
            notes = check_continues(settings, topics, servers, progress)
    except ShardstreamError as error:
        passes = isinstance(error, Retry | Rebuild)
        fix = f"see {_RUNBOOK}, {type(error).__name__}"
        return LogFindings([Problem(str(error), topics.log, fix, passing=passes)])
    return LogFindings(warnings=[f"{topics.log}: {note}" for note in notes])
