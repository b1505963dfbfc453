"""SKIP records: an operator's decision to pass transactions that are not in the log.

A SKIP is a transaction of its own, which a command writes and every reader stops at until an
operator has accepted it for that reader.
"""

import json
import re
import shlex
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from event_token import GtidError
from event_token.errors import UsageError
from event_token.gtid_set import NamedGtids
from topics.errors import CorruptRecord
from topics.records.statement_record import encode_statement
from topics.records.table_shape import SchemaIds
from topics.records.vevent import EventType, TokenText, VEvent

# As of every record that belongs to no table: two empty Avro strings.
SKIP_KEY: Final = b"\0\0"


class SkipKind(StrEnum):
    """What was skipped."""

    TRANSACTION = "transaction"  # it stopped the shard for good, and its changes are not logged
    LOST = "lost"  # the log holds them, and a failover lost them on the servers


@dataclass(frozen=True, slots=True)
class Skip:
    """What a SKIP record says.

    `gtids`: of all skipped transactions, separated by commas; of a loss on MariaDB those that left
    records in the log. `reason`: the operator's. `by`: who skipped them, as `user@host`; "" where
    the record does not say.
    """

    kind: SkipKind
    gtids: str
    reason: str
    by: str = ""

    def to_json(self) -> str:
        """Return the record's `statement`."""
        fields = {"kind": self.kind.value, "gtids": self.gtids, "reason": self.reason}
        if self.by:
            fields["by"] = self.by
        return json.dumps(fields, ensure_ascii=False)

    @classmethod
    def of(cls, event: VEvent) -> Self:
        """Return what a SKIP event says; CorruptRecord if it says nothing."""
        try:
            fields = json.loads(event.statement or "")
            by = fields.get("by", "")
            return cls(SkipKind(fields["kind"]), fields["gtids"], fields["reason"], by)
        except (KeyError, TypeError, ValueError) as error:
            where = f"log of shard {event.shard}, offset {event.offset}"
            raise CorruptRecord(f"{where}: a SKIP record is broken: {error}") from error


def encode_skip(
    skip: Skip, *, seq: int, token: TokenText, gtid: str, schema_ids: SchemaIds
) -> bytes:
    """Return the value of a SKIP record: a transaction of its own, at the time of its token.

    `gtid`: as the operator named what is skipped.
    """
    return encode_statement(
        EventType.SKIP, skip.to_json(), seq=seq, token=token, schema_ids=schema_ids, gtid=gtid
    )


ACCEPT_OPTION: Final = "--accept-skip"
_REASON: Final = "reason:"
# The option with one word as a shell takes it, quoted by shlex.
_OPTION: Final = re.compile(ACCEPT_OPTION + r" ('[^']*'(\"'\"'[^']*')*|[^\s']\S*)")
_CREDENTIALS: Final = re.compile(r"(://[^/@\s:]+:)[^/@\s]+@")


def check_accepted(texts: Collection[str]) -> None:
    """UsageError unless each is GTIDs or a reason: one that matches nothing would be of no use."""
    for text in texts:
        if text == _REASON or not text.startswith(_REASON):
            try:
                NamedGtids.parse([text])
            except GtidError as error:
                raise UsageError(
                    f"{ACCEPT_OPTION} {text!r}: name GTIDs, or {_REASON}TEXT for all skips of one "
                    f"reason: {error}"
                ) from error


def is_accepted(accepted: Collection[str], gtid: str, statement: str) -> bool:
    """Whether an operator has accepted a SKIP record: by GTIDs that include its, or its reason.

    `statement`: the record's.
    """
    reason = _reason(statement)
    if gtid in accepted or (reason and _REASON + reason in accepted):
        return True
    named = NamedGtids.parse([])
    for text in accepted:
        with suppress(GtidError):
            named = named.union(NamedGtids.parse([text]))
    return named.includes(gtid)


def accept_advice(gtid: str, statement: str) -> str:
    """The option that accepts a SKIP record, and all others of its reason."""
    reason = _reason(statement)
    every = f"{ACCEPT_OPTION} {shlex.quote(_REASON + reason)} for all of this reason, or "
    return f"{every if reason else ''}{ACCEPT_OPTION} {gtid}"


def accepting_command(arguments: Collection[str], message: str) -> str:
    """The whole command that goes on behind a skip that was not accepted; "" for another error.

    `arguments`: of the command that stopped with `message`. A password in a URL is left out.
    """
    option = _OPTION.search(message)
    if option is None:
        return ""
    shown = [_CREDENTIALS.sub(r"\1***@", each) for each in arguments]
    return shlex.join(["shardstream", *shown, *shlex.split(option[0])])


def _reason(statement: str) -> str:
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(statement)["reason"])
    return ""
