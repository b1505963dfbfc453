"""Collects all problems of settings, servers and Kafka, even while some of them are down."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from databases.errors import ServerLost
from event_token.errors import Rebuild, Retry, ShardstreamError, UsageError
from producers.errors import Findings, Problem
from producers.preflight import shard_findings
from producers.servers.identity import twin_problems
from producers.settings import ShardProducerSettings
from producers.start.choose_start import log_findings
from shardstream.settings.model import Settings
from shardstream.settings.producer_settings import shard_producer_settings, topic_settings
from topics.errors import NoBrokerAnswers
from topics.kafka.provisioning import topic_warnings as log_warnings
from topics.kafka.provisioning import wrong_topics
from topics.names import ShardTopics

_WHERE_READ = "set the variable or write the file, or correct the settings"


@dataclass(slots=True)
class PreflightReport:
    """All problems, of shards (each with its name) and of Kafka, and warnings.

    `kafka_answers`: whether a broker has answered.
    """

    checked: list[str] = field(default_factory=list)
    servers: list[tuple[str, Problem]] = field(default_factory=list)
    kafka: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    kafka_answers: bool = True

    def add(self, shard: ShardProducerSettings, findings: Findings) -> None:
        """Add what was found of a shard."""
        name = f"{shard.keyspace}/{shard.shard}"
        self.servers += [(name, problem) for problem in findings.problems]
        self.warnings += findings.warnings

    @property
    def count(self) -> int:
        """The number of problems."""
        return len(self.servers) + len(self.kafka)

    @property
    def may_pass(self) -> bool:
        """Whether all problems are servers or brokers that do not answer."""
        # If no broker answers, that is the only problem of Kafka in the list.
        is_kafka_sound = not self.kafka or not self.kafka_answers
        return is_kafka_sound and all(problem.passing for _, problem in self.servers)


def collect_findings(settings: Settings, keyspaces: Iterable[str]) -> PreflightReport:
    """Check settings, servers and topics of all shards and reshard targets of these keyspaces."""
    found = PreflightReport()
    names = list(keyspaces)
    with_secrets = settings
    try:
        settings.kafka_client()
    except UsageError as error:
        found.kafka.append(f"{error}. Fix: {_WHERE_READ}")
        # The servers are still checked.
        kafka = settings.kafka.model_copy(update={"secrets": {}})
        settings = settings.model_copy(update={"kafka": kafka})
    shards = []
    for keyspace in names:
        _check_reshard_account(found, settings, keyspace)
        for shard in settings.keyspace(keyspace).all_shards:
            found.checked.append(f"{keyspace}/{shard}")
            producer = _settings_of(found, settings, keyspace, shard)
            if producer is not None:
                shards.append(producer)
                is_target = shard not in settings.keyspace(keyspace).shards
                found.add(producer, shard_findings(producer, with_tables=not is_target))
    found.servers += twin_problems(shards)
    if not found.kafka:
        _check_kafka(found, with_secrets, names)
    if not found.kafka:
        _check_logs(found, with_secrets, shards)
    return found


def _check_reshard_account(found: PreflightReport, settings: Settings, keyspace: str) -> None:
    account = settings.keyspace(keyspace).reshard
    if account is None:
        return
    try:
        account.password(settings.folder).read()
    except UsageError as error:
        where = f"[keyspaces.{keyspace}.reshard]"
        found.servers.append((keyspace, Problem(str(error), where, _WHERE_READ)))


def _settings_of(
    found: PreflightReport, settings: Settings, keyspace: str, shard: str
) -> ShardProducerSettings | None:
    """Return the settings of a shard's producer; add problems and return None if they are wrong."""
    problems = []
    for server in settings.shard(keyspace, shard).servers:
        try:
            server.password(settings.folder).read()
        except UsageError as error:
            where = f"{server.host}:{server.port}"
            problems.append(Problem(str(error), where, _WHERE_READ))
    if not problems:
        try:
            return shard_producer_settings(settings, keyspace, shard)
        except UsageError as error:
            problems.append(Problem(str(error), "settings", "correct the settings"))
    found.servers += [(f"{keyspace}/{shard}", problem) for problem in problems]
    return None


def _check_kafka(found: PreflightReport, settings: Settings, keyspaces: Sequence[str]) -> None:
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
    found: PreflightReport, settings: Settings, shards: Sequence[ShardProducerSettings]
) -> None:
    """Check whether each log can be continued; skip shards whose servers have problems."""
    schema_ids = settings.schema_ids()
    faulty = {name for name, _ in found.servers}
    for shard in shards:
        if f"{shard.keyspace}/{shard.shard}" in faulty:
            continue
        try:
            found.add(shard, log_findings(shard, schema_ids))
        except ShardstreamError as fault:
            found.kafka_answers = not isinstance(fault, Retry | Rebuild)
            found.kafka.append(str(fault))
            return


def topic_problems(settings: Settings, keyspace: str, shards: Sequence[str]) -> list[str]:
    """Return the problems of topics that exist already."""
    topics = [ShardTopics(keyspace, shard) for shard in shards]
    return wrong_topics(settings.kafka_client(), topics, topic_settings(settings))


def topic_warnings(settings: Settings, keyspace: str, shards: Sequence[str]) -> list[str]:
    """Return warnings about the logs that are no reason to refuse them."""
    topics = [ShardTopics(keyspace, shard) for shard in shards]
    return log_warnings(settings.kafka_client(), topics, topic_settings(settings))


def refuse_problems(settings: Settings, shard: ShardProducerSettings) -> list[str]:
    """Raise one UsageError with all problems of a shard's servers and topics; return the warnings.

    A server that does not answer is tolerated as long as another one of the shard can be read.
    ServerLost if the only problem is that no server or broker answers, which may pass.
    """
    findings = shard_findings(shard)
    problems = findings.problems
    unsound = {problem.where for problem in problems}
    if any(server.read and server.name not in unsound for server in shard.servers):
        problems = [problem for problem in problems if not problem.passing]
    found = [str(problem) for problem in problems]
    may_pass = all(problem.passing for problem in problems)
    try:
        wrong = topic_problems(settings, shard.keyspace, [shard.shard])
        may_pass = may_pass and not wrong
        found += wrong
    except (NoBrokerAnswers, Retry, Rebuild) as fault:
        found.append(str(fault))
    if found and may_pass:
        raise ServerLost(f"{shard.keyspace}/{shard.shard}: {'; '.join(found)}")
    if found:
        lines = "\n".join(f"  {problem}" for problem in found)
        raise UsageError(
            f"{shard.keyspace}/{shard.shard}: {len(found)} problem(s); nothing was started\n{lines}"
        )
    return topic_warnings(settings, shard.keyspace, [shard.shard]) + findings.warnings
