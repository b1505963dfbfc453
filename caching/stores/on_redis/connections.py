"""The connections to one server, for threads."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from caching.stores.on_redis.scripts import Word
from caching.stores.on_redis.wire import Wire, send


class Connections:
    """Connections to one server: made by redis-py's pool, and used again.

    Taken from that pool and given back, each call would look at its socket, record metrics and
    dispatch events, which takes a third of a hit. Here a connection that turns out to be closed is
    opened again, once, and the commands are sent again: all of ours may be repeated.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        """Connect to nothing yet. ValueError on a bad URL."""
        self._url = url
        self._options = options
        self._begin()

    def _begin(self) -> None:
        self._pool = ConnectionPool.from_url(
            self._url, **self._options, retry=Retry(NoBackoff(), 0)
        )
        self._idle: list[Wire] = []
        self._pid = os.getpid()

    def make(self) -> Wire:
        """Return a connection that is not connected yet, for the caller alone."""
        connection: Wire = self._pool.make_connection()
        return connection

    def send(self, words: Sequence[tuple[Word, ...]]) -> list[Any]:
        """Send commands in one go and read the replies; error replies are among them.

        Raises what redis-py raises where the server does not answer.
        """
        connection = self._take()
        was_connected = connection.is_connected
        try:
            try:
                replies = send(connection, words)
            except RedisConnectionError:
                if not was_connected:
                    raise
                replies = send(connection, words)
        except BaseException:
            # An interrupt may have left a reply unread; after another one, right here, the
            # connection is in nobody's list.
            connection.disconnect()
            self._idle.append(connection)
            raise
        self._idle.append(connection)
        return replies

    def close(self) -> None:
        """Close the connections that are not in use."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return
            connection.disconnect()

    def _take(self) -> Wire:
        if self._pid != os.getpid():  # the sockets are those of the process that has forked
            self._begin()
        try:
            return self._idle.pop()
        except IndexError:
            return self.make()
