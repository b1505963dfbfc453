"""The routes of `shardstream serve --streams`: streams, keyspaces, tokens and positions."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, Self, TypeVar

from prometheus_client.core import Metric
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive

from event_token import EventToken, Order, TokenError, compare
from event_token.decoded import parse_opaque, position_to_json_dict, token_to_json_dict
from event_token.errors import ShardstreamError, UsageError
from shardstream.settings.model import Settings
from shardstream.status.metrics.processes import stream_families
from shardstream.streams.encoding import error_json
from shardstream.streams.openapi import openapi_document
from shardstream.streams.outbox import Outbox
from shardstream.streams.readers import StreamReaders
from shardstream.streams.request import RequestRefused, StreamFormat, StreamRequest, parse_request
from shardstream.streams.response import StreamResponse, await_disconnect
from topics.keyspace.topology import Topology, read_topology, require_topology

# Each has a connection, a file descriptor, and an outbox of at most CLIENT_BYTES_MAX.
STREAMS_MAX: Final = 1_000
# When to ask again for a stream: others end at any time.
STREAMS_RETRY_S: Final = 10
# Streams that are being opened at a time, which blocks a thread for tenths of a second, and for
# seconds while brokers do not answer.
OPENERS_MAX: Final = 64
# Two tokens. One names the GTIDs of a server: thousands of intervals are some 100 kB.
BODY_BYTES_MAX: Final = 1024 * 1024
# What installs the library that writes Arrow.
ARROW_EXTRA: Final = "shardstream[arrow]"

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[ASGIApp]]


class StreamService:
    """The streams of all keyspaces of the settings. A context manager: they end with it."""

    def __init__(self, settings: Settings) -> None:
        """Nothing is read before a client comes."""
        self._settings = settings
        self._config = settings.kafka_client()
        self.readers = StreamReaders(settings)
        self._openers = asyncio.Semaphore(OPENERS_MAX)
        self._refused: Counter[int] = Counter()  # by status

    def __enter__(self) -> Self:
        self.readers.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.readers.__exit__(*exc_info)

    def families(self) -> Iterator[Metric]:
        """Yield the metrics of the streams."""
        readers = self.readers
        return stream_families(
            readers.streams,
            readers.readers,
            readers.shared,
            readers.messages,
            self._refused.copy(),
        )

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/v1/openapi.json", _answering(self._openapi)),
            Route("/v1/streams/{keyspace}", _answering(self._stream), methods=["GET"]),
            Route("/v1/keyspaces", _answering(self._keyspaces)),
            Route("/v1/keyspaces/{keyspace}", _answering(self._keyspace)),
            Route(
                "/v1/tokens/compare",
                _answering(self._compare),
                methods=["POST"],
                max_body_size=BODY_BYTES_MAX,
            ),
            Route("/v1/positions/{position}", _answering(self._position)),
        ]

    async def _openapi(self, _request: Request) -> Response:
        return JSONResponse(openapi_document())

    async def _stream(self, asked: Request) -> ASGIApp:
        if asked.method != "GET":  # HEAD comes with GET, and a stream has no end
            raise RequestRefused(405, "a stream is asked for by GET")
        try:
            return await self._begun(asked)
        except RequestRefused as error:
            self._refused[error.status] += 1
            raise

    async def _begun(self, asked: Request) -> ASGIApp:
        keyspace = self._known(asked)
        request = await _in_thread(
            partial(
                parse_request,
                keyspace,
                asked.query_params.multi_items(),
                asked.headers.get("accept", ""),
                asked.headers.get("last-event-id", ""),
            )
        )
        try:
            return await self._opened(request, asked.receive)
        except RequestRefused as error:
            if error.retry_s is None or request.format is not StreamFormat.SSE:
                raise
            self._refused[error.status] += 1
            # After any status but 200 browsers do not come back.
            return _come_back(error, error.retry_s)

    async def _opened(self, request: StreamRequest, receive: Receive) -> ASGIApp:
        if request.format is StreamFormat.ARROW and find_spec("pyarrow") is None:
            raise RequestRefused(406, f"{ARROW_EXTRA} is not installed: ask for another format")
        if self.readers.streams >= STREAMS_MAX:
            raise RequestRefused(
                429,
                f"{STREAMS_MAX} streams are open: come back later, or ask another server",
                retry_s=STREAMS_RETRY_S,
            )
        outbox = self.readers.register(request, asyncio.get_running_loop())
        opening = asyncio.ensure_future(self._open(request, outbox))
        gone = asyncio.ensure_future(await_disconnect(receive))
        try:
            await asyncio.wait((opening, gone), return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                outbox.close()  # which the opener notices
            await opening
        except BaseException:
            opening.cancel()
            self.readers.forget(outbox)
            raise
        finally:
            gone.cancel()
        return StreamResponse(request, outbox, partial(self.readers.forget, outbox))

    async def _open(self, request: StreamRequest, outbox: Outbox) -> None:
        async with self._openers:
            await _in_thread(partial(self.readers.open, request, outbox))

    async def _keyspaces(self, _request: Request) -> Response:
        return JSONResponse({"keyspaces": sorted(self._settings.keyspaces)})

    async def _keyspace(self, asked: Request) -> Response:
        keyspace = self._known(asked)
        topology = await _in_thread(partial(read_topology, self._config, keyspace))
        try:
            return JSONResponse(keyspace_json(require_topology(topology, keyspace)))
        except UsageError as error:
            raise RequestRefused(404, str(error)) from error

    async def _compare(self, asked: Request) -> Response:
        try:
            given = json.loads(await asked.body())
        except ValueError as error:
            raise RequestRefused(400, f"the body is not JSON: {error}") from error
        if not isinstance(given, dict) or given.keys() != {"a", "b"}:
            raise RequestRefused(400, "the body is not an object of two tokens, a and b")
        order = await _in_thread(partial(self._order, given["a"], given["b"]))
        return JSONResponse({"order": order.name})

    def _order(self, a: object, b: object) -> Order:
        return compare(_token("a", a), _token("b", b), self._settings.clock_uncertainty())

    async def _position(self, asked: Request) -> Response:
        return JSONResponse(await _in_thread(partial(decoded, asked.path_params["position"])))

    def _known(self, asked: Request) -> str:
        keyspace = str(asked.path_params["keyspace"])
        try:
            self._settings.keyspace(keyspace)
        except UsageError as error:
            raise RequestRefused(404, str(error)) from error
        return keyspace


async def _in_thread(call: Callable[[], T]) -> T:
    """Return what a call returns, which blocks, or takes long for large input.

    Unlike an executor's, the thread does not keep the process from ending.
    """
    found: Future[T] = Future()
    found.set_running_or_notify_cancel()  # its result may come after nobody waits for it

    def run() -> None:
        try:
            found.set_result(call())
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            found.set_exception(error)

    threading.Thread(target=run, name="stream-opener", daemon=True).start()
    return await asyncio.wrap_future(found)


def _come_back(error: RequestRefused, retry_s: int) -> Response:
    why = " ".join(str(error).split())
    text = f": {why}\nretry: {retry_s * 1_000}\n\n"
    return Response(text, media_type=StreamFormat.SSE.value)


def keyspace_json(topology: Topology) -> dict[str, Any]:
    """Return the shards, vindexes and reshards of a keyspace."""
    return {
        "keyspace": topology.keyspace,
        "epoch": topology.epoch,
        "shards": [
            {"name": each.name, "state": each.state.value, "key_range": str(each.key_range)}
            for each in topology.shards
        ],
        "vindexes": [
            {
                "database": each.database,
                "table": each.table,
                "columns": list(each.columns),
                "vindex": each.vindex,
            }
            for each in topology.vindexes
        ],
        "reshards": [
            {
                "id": each.reshard_id,
                "sources": list(each.sources),
                "targets": list(each.targets),
                "state": each.state,
                "hop_time_us": each.hop_time_us,
            }
            for each in topology.reshards
        ],
    }


def decoded(text: str) -> dict[str, object]:
    """Return what a position or an event token says. RequestRefused if it is neither."""
    try:
        found = parse_opaque(text)
    except UsageError as error:
        raise RequestRefused(400, str(error)) from error
    if isinstance(found, EventToken):
        return token_to_json_dict(found)
    return position_to_json_dict(found)


def _token(name: str, given: object) -> EventToken:
    if not isinstance(given, str):
        raise RequestRefused(400, f"{name} is not a string")
    try:
        return EventToken.from_string(given)
    except TokenError as error:
        raise RequestRefused(400, f"{name}: {error}") from error


def _answering(handle: Handler) -> Handler:
    """Return a handler that answers errors by their status, with one sentence as JSON."""

    async def answer(asked: Request) -> ASGIApp:
        try:
            _check_origin(asked)
            return await handle(asked)
        except RequestRefused as error:
            headers = {} if error.retry_s is None else {"retry-after": str(error.retry_s)}
            return JSONResponse(error_json(error), error.status, headers)
        except ShardstreamError as error:
            return JSONResponse(error_json(error), 503)

    return answer


def _check_origin(asked: Request) -> None:
    """Refuse what a page of another web site makes a browser ask, which may need no token here."""
    site, origin = asked.headers.get("sec-fetch-site"), asked.headers.get("origin")
    if site is None and origin is not None:  # a browser of long ago, or not over TLS
        is_own = origin.partition("://")[2] == asked.headers.get("host")
        site = "same-origin" if is_own else origin
    if site not in {None, "same-origin", "none"}:
        raise RequestRefused(403, f"pages of other web sites may not ask for this ({site})")
