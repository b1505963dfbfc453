"""Which SKIP records an operator has accepted: by their GTIDs, or all of one reason. Pure."""

import json
import re
import shlex
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from event_token import GtidError
from event_token.errors import UsageError
from event_token.named_gtids import NamedGtids

ACCEPT_OPTION: Final = "--accept-skip"
_REASON: Final = "reason:"
# The option with one word as a shell takes it, quoted by shlex.
_OPTION: Final = re.compile(ACCEPT_OPTION + r" ('[^']*'(\"'\"'[^']*')*|[^\s']\S*)")
_CREDENTIALS: Final = re.compile(r"(://[^/@\s:]+:)[^/@\s]+@")


def check_accepted(texts: Collection[str]) -> None:
    """UsageError unless each is GTIDs or a reason: one that matches nothing would be of no use."""
    for text in texts:
        if text == _REASON:
            raise UsageError(f"{ACCEPT_OPTION} {text!r}: an empty reason accepts nothing")
        if not text.startswith(_REASON):
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
