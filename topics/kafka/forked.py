"""Kafka clients in a forked process, which has none of librdkafka's threads.

There a client of the parent would return nothing for ever, wait for ever when it is closed, and
end the process by a signal when it is collected. So it becomes one that says what it is, and that
is never collected.
"""

import ctypes
import os
import weakref
from typing import Any, Final

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from event_token.errors import UsageError

_open: "Final[weakref.WeakSet[Consumer | Producer | AdminClient]]" = weakref.WeakSet()


class _OfParent:
    """Raises UsageError at any use but to be closed, for which nothing is to be done."""

    def close(self, *_: object) -> Any:
        return True

    def __len__(self) -> int:
        raise _forked()

    def __getattribute__(self, name: str) -> Any:
        if name in {"close", "__class__"}:
            return object.__getattribute__(self, name)
        raise _forked()


class _ConsumerOfParent(_OfParent, Consumer):
    pass


class _ProducerOfParent(_OfParent, Producer):
    pass


class _AdminOfParent(_OfParent, AdminClient):
    pass


def _forked() -> UsageError:
    return UsageError(
        f"a Kafka client that another process opened is used in process {os.getpid()}, which was "
        f"forked from it: the client's threads are in the other one alone. Fix: create "
        f"subscribers and queries after the fork"
    )


def note_client(client: Consumer | Producer | AdminClient) -> None:
    """Note a client of a subclass that can be referred to weakly, for processes to come."""
    _open.add(client)


def _leave_to_parent() -> None:
    for client in list(_open):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
        match client:
            case Consumer():
                client.__class__ = _ConsumerOfParent
            case Producer():
                client.__class__ = _ProducerOfParent
            case AdminClient():
                client.__class__ = _AdminOfParent
    _open.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
