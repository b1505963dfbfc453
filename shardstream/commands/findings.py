"""Collects what is wrong with settings, servers and Kafka, whatever of them is down."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from event_token.errors import Rebuild, Retry, ShardstreamError, UsageError
from producers.copy.throttle import lag_problems
from producers.errors import Problem
from producers.preflight.log_position import log_findings
from producers.preflight.server_checks import preflight
from producers.preflight.twins import twin_problems
from producers.preflight.warnings import server_warnings
from producers.servers.server_list import table_problems
from producers.session.heartbeat_rows import heartbeat_warnings
from producers.settings import ShardProducerSettings
from shardstream.settings.model import Settings
from shardstream.settings.producer_settings import shard_producer_settings, topic_settings
from topics.errors import NoBrokerAnswers
from topics.kafka.provisioning import topic_warnings as log_warnings
from topics.kafka.provisioning import wrong_topics
from topics.names import ShardTopics
from topics.schemas.registry import open_schema_ids

_TO_READ_IT = "set the variable or write the file, or correct the settings"


@dataclass(slots=True)
class Findings:
    """All problems: of shards, each with its name, and of Kafka; and warnings.

    `kafka_answers`: whether it could be asked.
    """

    checked: list[str] = field(default_factory=list)
    servers: list[tuple[str, Problem]] = field(default_factory=list)
    kafka: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    kafka_answers: bool = True

    @property
    def count(self) -> int:
        """The number of problems."""
        return len(self.servers) + len(self.kafka)

    @property
    def may_pass(self) -> bool:
        """Whether nothing is wrong but that servers or brokers do not answer."""
        # A Kafka that does not answer is all that is found of it.
        is_kafka_sound = not self.kafka or not self.kafka_answers
        return is_kafka_sound and all(problem.passing for _, problem in self.servers)


def collect_findings(settings: Settings, keyspaces: Iterable[str]) -> Findings:
    """Check settings, servers and topics of all shards and reshard targets of these keyspaces."""
    found = Findings()
    chosen = list(keyspaces)
    with_secrets = settings
    try:
        settings.kafka_client()
    except UsageError as error:
        found.kafka.append(f"{error}. Fix: {_TO_READ_IT}")
        # The servers are checked all the same.
        kafka = settings.kafka.model_copy(update={"secrets": {}})
        settings = settings.model_copy(update={"kafka": kafka})
    shards = []
    for keyspace in chosen:
        _check_reshard_account(found, settings, keyspace)
        for shard in settings.keyspace(keyspace).all_shards:
            found.checked.append(f"{keyspace}/{shard}")
            producer = _settings_of(found, settings, keyspace, shard)
            if producer is not None:
                shards.append(producer)
                _check_servers(found, settings, producer)
    found.servers += twin_problems(shards)
    if not found.kafka:
        _check_kafka(found, with_secrets, chosen)
    if not found.kafka:
        _check_logs(found, with_secrets, shards)
    return found


def _check_reshard_account(found: Findings, settings: Settings, keyspace: str) -> None:
    account = settings.keyspace(keyspace).reshard
    if account is None:
        return
    try:
        account.password(settings.folder)
    except UsageError as error:
        where = f"[keyspaces.{keyspace}.reshard]"
        found.servers.append((keyspace, Problem(str(error), where, _TO_READ_IT)))


def _settings_of(
    found: Findings, settings: Settings, keyspace: str, shard: str
) -> ShardProducerSettings | None:
    """The settings of a shard's producer; None, with the problems, if they cannot be read."""
    problems = []
    for server in settings.shard(keyspace, shard).servers:
        try:
            server.password(settings.folder)
        except UsageError as error:
            where = f"{server.host}:{server.port}"
            problems.append(Problem(str(error), where, _TO_READ_IT))
    if not problems:
        try:
            return shard_producer_settings(settings, keyspace, shard)
        except UsageError as error:
            problems.append(Problem(str(error), "settings", "correct the settings"))
    found.servers += [(f"{keyspace}/{shard}", problem) for problem in problems]
    return None


def _check_servers(found: Findings, settings: Settings, shard: ShardProducerSettings) -> None:
    name = f"{shard.keyspace}/{shard.shard}"
    is_target = shard.shard not in settings.keyspace(shard.keyspace).shards
    problems = shard_problems(shard, with_tables=not is_target)
    found.servers += [(name, problem) for problem in problems]
    away = {problem.where for problem in problems if problem.passing}
    if not away:
        found.warnings += heartbeat_warnings(shard)
    answering = tuple(server for server in shard.servers if server.name not in away)
    if any(server.read for server in answering):
        found.warnings += server_warnings(replace(shard, servers=answering))


def _check_kafka(found: Findings, settings: Settings, keyspaces: Sequence[str]) -> None:
    for keyspace in keyspaces:
        section = settings.keyspace(keyspace)
        try:
            found.kafka += topic_problems(settings, keyspace, list(section.all_shards))
            found.warnings += topic_warnings(settings, keyspace, list(section.shards))
        except (UsageError, Retry, Rebuild) as fault:
            found.kafka_answers = isinstance(fault, UsageError) and not isinstance(
                fault, NoBrokerAnswers
            )
            found.kafka.append(str(fault))
            return


def _check_logs(
    found: Findings, settings: Settings, shards: Sequence[ShardProducerSettings]
) -> None:
    """Look whether each log can be continued; where a server is faulty, that is told already."""
    schema_ids = open_schema_ids(settings.kafka_client(), settings.kafka.schema_registry_url)
    faulty = {name for name, _ in found.servers}
    for shard in shards:
        name = f"{shard.keyspace}/{shard.shard}"
        if name in faulty:
            continue
        try:
            of_log = log_findings(shard, schema_ids)
        except ShardstreamError as fault:
            found.kafka_answers = not isinstance(fault, Retry | Rebuild)
            found.kafka.append(str(fault))
            return
        found.servers += [(name, problem) for problem in of_log.problems]
        found.warnings += of_log.warnings


def shard_problems(shard: ShardProducerSettings, *, with_tables: bool = True) -> list[Problem]:
    """Return the problems of a shard's servers: settings, versions, grants, reachability.

    A target of a reshard has no tables yet, so they are not compared with the settings.
    """
    found = []
    for server in shard.servers:
        tables = partial(table_problems, server_name=server.name, settings=shard)
        found += preflight(
            server,
            shard.flavor,
            accept_unlogged_cascades=shard.accept_unlogged_cascades,
            accept_loss_at_server_crash=shard.accept_loss_at_server_crash,
            more=tables if with_tables else lambda _connection: [],
        )
    return found + lag_problems(shard)


def topic_problems(settings: Settings, keyspace: str, shards: Sequence[str]) -> list[str]:
    """Return the problems of topics that exist already."""
    topics = [ShardTopics(keyspace, shard) for shard in shards]
    return wrong_topics(settings.kafka_client(), topics, topic_settings(settings))


def topic_warnings(settings: Settings, keyspace: str, shards: Sequence[str]) -> list[str]:
    """Return what an operator should know about the logs, though nothing is refused for it."""
    topics = [ShardTopics(keyspace, shard) for shard in shards]
    return log_warnings(settings.kafka_client(), topics, topic_settings(settings))
