"""The topics of a keyspace, for those who create them with tools of their own. Pure."""

import json
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from topics.kafka.topic_settings import (
    BROKERS_DEFAULT,
    Rule,
    TopicRules,
    TopicSettings,
    audit_rules,
    control_rules,
    in_sync_rules,
    positions_rules,
    readers_rules,
    schemas_rules,
    shard_rules,
)
from topics.names import (
    POSITIONS_TOPIC,
    SCHEMAS_TOPIC,
    ShardTopics,
    audit_topic,
    readers_topic,
    topology_topic,
)

# Where the settings leave the number of replicas to the brokers, the plan has to name one.
REPLICAS_DEFAULT: Final = 3


class PlanFormat(StrEnum):
    """How a plan is written."""

    TEXT = "text"
    JSON = "json"
    TERRAFORM = "terraform"
    STRIMZI = "strimzi"


def planned_topics(keyspace: str, shards: Sequence[str], chosen: TopicSettings) -> list[TopicRules]:
    """Return every topic that a keyspace needs, and those that all keyspaces share."""
    planned = [
        schemas_rules(SCHEMAS_TOPIC),
        positions_rules(POSITIONS_TOPIC),
        control_rules(topology_topic(keyspace)),
        readers_rules(readers_topic(keyspace)),
        audit_rules(audit_topic(keyspace)),
    ]
    for shard in shards:
        planned += shard_rules(ShardTopics(keyspace, shard), chosen, {})
    return planned


def plan_text(planned: Sequence[TopicRules], chosen: TopicSettings, form: PlanFormat) -> str:
    """Return a plan for people, as an object per line, or as Terraform or Strimzi reads it."""
    replicas = chosen.replication_factor
    if replicas == BROKERS_DEFAULT:
        replicas = REPLICAS_DEFAULT
    write = {
        PlanFormat.TEXT: _text,
        PlanFormat.JSON: _json,
        PlanFormat.TERRAFORM: _terraform,
        PlanFormat.STRIMZI: _strimzi,
    }[form]
    return "\n".join(write(rules, replicas) for rules in planned)


def _settings(rules: TopicRules, replicas: int) -> list[Rule]:
    return [*rules.rules, *in_sync_rules(replicas)]


def _text(rules: TopicRules, replicas: int) -> str:
    lines = [f"{rules.topic}: {rules.partitions} partition(s), {replicas} replica(s)"]
    for rule in _settings(rules, replicas):
        note = "" if rule.is_required else f"  (optional{rule.without and ': '}{rule.without})"
        lines.append(f"  {rule.name} = {rule.value}{note}")
    return "\n".join(lines)


def _json(rules: TopicRules, replicas: int) -> str:
    settings = _settings(rules, replicas)
    return json.dumps(
        {
            "topic": rules.topic,
            "partitions": rules.partitions,
            "replicas": replicas,
            "settings": {rule.name: rule.value for rule in settings},
            "optional": [rule.name for rule in settings if not rule.is_required],
        }
    )


def _terraform(rules: TopicRules, replicas: int) -> str:
    # Of the provider Mongey/kafka. Names of resources take neither dots nor a digit in front.
    name = re.sub(r"[^0-9A-Za-z_-]", "_", rules.topic)
    config = "".join(f'    "{rule.name}" = "{rule.value}"\n' for rule in _settings(rules, replicas))
    return (
        f'resource "kafka_topic" "topic_{name}" {{\n'
        f'  name               = "{rules.topic}"\n'
        f"  partitions         = {rules.partitions}\n"
        f"  replication_factor = {replicas}\n"
        f"  config = {{\n{config}  }}\n}}"
    )


def _strimzi(rules: TopicRules, replicas: int) -> str:
    # In Kubernetes each part of a name begins and ends with a letter or a digit.
    parts = re.sub(r"[^0-9a-z.-]", "-", rules.topic.lower()).lstrip("-").split(".")
    parts = [f"{'x' * part.startswith('-')}{part}{'x' * part.endswith('-')}" for part in parts]
    name = ".".join(parts)
    config = "".join(f'    {rule.name}: "{rule.value}"\n' for rule in _settings(rules, replicas))
    return (
        "---\napiVersion: kafka.strimzi.io/v1\nkind: KafkaTopic\nmetadata:\n"
        f"  name: {name}\n"
        "  labels:\n    strimzi.io/cluster: CLUSTER\n"
        f"spec:\n  topicName: {rules.topic}\n  partitions: {rules.partitions}\n"
        f"  replicas: {replicas}\n  config:\n{config.rstrip()}"
    )
