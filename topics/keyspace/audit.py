"""The audit topic of a keyspace: who changed it by a command, when, why, and what came of it.

An act has a record before it begins, and a second one with its outcome. The topic keeps them all.
"""

import json
import os
import pwd
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from dataclasses import fields as dataclass_fields
from typing import Any, Final

from event_token.errors import Halt, Retry, ShardstreamError, UsageError
from topics.errors import CorruptRecord, NoBrokerAnswers
from topics.kafka.client import ClientConfig, write_record
from topics.kafka.partition_reader import read_to_end
from topics.kafka.provisioning import provision_audit
from topics.kafka.topic_settings import TopicSettings
from topics.names import audit_topic

# The version of the JSON layout; readers refuse any other.
LAYOUT: Final = 1
# A reason is a sentence or a ticket. That of a skip is carried along by every reader of the log.
REASON_CHARS_MAX: Final = 1_000
# An error may list a problem per shard and table; its first lines tell what went wrong.
_OUTCOME_CHARS_MAX: Final = 1_000

DONE: Final = "done"
_FAILED: Final = "failed: "


def operator() -> str:
    """Return who runs this process, as `user@host`: by its user id, not by its environment."""
    uid = os.getuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        # A container may run under an id that has no name.
        user = str(uid)
    return f"{user}@{socket.gethostname()}"


@dataclass(frozen=True, slots=True)
class Act:
    """A change of a keyspace by an operator's command.

    `command`: without `shardstream` and the keyspace, such as `topology retire`; `subject`: what it
    was about, with the options that matter. `outcome`: `done`, or `failed: ` and the error; ""
    while the command runs, and for good if it was killed or could not reach Kafka at its end.
    `by`: as of `operator`. `at_us`: when it began, by the clock of that host.
    """

    command: str
    subject: str
    reason: str = ""
    outcome: str = ""
    by: str = field(default_factory=operator)
    at_us: int = field(default_factory=lambda: time.time_ns() // 1_000)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


@contextmanager
def recorded_act(
    config: ClientConfig, keyspace: str, chosen: TopicSettings, act: Act
) -> Iterator[None]:
    """Record that an act begins, and after the block what came of it.

    If the first record cannot be written, the block does not run: UsageError for a reason that is
    too long and for a topic that may not be written, Retry when no broker answers, Halt when Kafka
    refuses the record. Halt also if the second one cannot be written after an act that was done. An
    act that fails ends with its own error.
    """
    if len(act.reason) > REASON_CHARS_MAX:
        raise UsageError(f"--reason takes a text of at most {REASON_CHARS_MAX} characters")
    try:
        provision_audit(config, keyspace, chosen)
        _write(config, keyspace, act)
    except NoBrokerAnswers:
        raise
    except ShardstreamError as error:
        kind = next((each for each in (UsageError, Retry) if isinstance(error, each)), Halt)
        raise kind(
            f"nothing was done, because {audit_topic(keyspace)} cannot record who does it: {error}"
        ) from error
    try:
        yield
    except Exception as error:
        # The act's own error has to be fixed first; without a second record its outcome is unknown.
        with suppress(ShardstreamError):
            text = str(error) if isinstance(error, ShardstreamError) else repr(error)
            outcome = f"{_FAILED}{text}"[:_OUTCOME_CHARS_MAX]
            _write(config, keyspace, replace(act, outcome=outcome))
        raise
    try:
        _write(config, keyspace, replace(act, outcome=DONE))
    except ShardstreamError as error:
        raise Halt(
            f"shardstream {act.command} was done, but {audit_topic(keyspace)} has only that it "
            f"began: {error}"
        ) from error


def _write(config: ClientConfig, keyspace: str, act: Act) -> None:
    write_record(config, audit_topic(keyspace), act.id.encode(), encode_act(act))


def read_acts(config: ClientConfig, keyspace: str) -> list[Act]:
    """Return all acts in the order in which they began; UsageError if there is no audit topic.

    CorruptRecord on a record of something else, Halt on a layout of another release.
    """
    topic = audit_topic(keyspace)
    acts: dict[str, Act] = {}
    for record in read_to_end(config, topic):
        act = decode_act(record.value, f"{topic}, offset {record.offset}")
        acts[act.id] = act
    return list(acts.values())


def encode_act(act: Act) -> bytes:
    """Return the Kafka value of an act; its key is the id."""
    return json.dumps({"layout": LAYOUT, **asdict(act)}, ensure_ascii=False).encode()


def decode_act(value: bytes | None, where: str) -> Act:
    """Decode a Kafka value; CorruptRecord, or Halt on an unknown layout, both naming `where`."""
    try:
        fields: dict[str, Any] = json.loads(value or b"")
        layout = fields.pop("layout")
        if layout != LAYOUT:
            raise Halt(
                f"{where}: layout {layout!r} of the audit record is not known: use the release "
                "that wrote it"
            )
        # Each by its name: a field that is missing must not take the value of this process.
        return Act(**{each.name: fields[each.name] for each in dataclass_fields(Act)})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRecord(f"{where}: not an audit record: {error!r}") from error
