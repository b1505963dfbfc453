"""Streams over HTTP at the live edge: the latency of one client, and what 1,000 of them cost."""

import http.client
import json
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Self

from benchmarks import latency
from benchmarks.binlog_fill import DATABASE, create_table
from benchmarks.figures import Figure, Turn, figure, percentile
from benchmarks.stack import Stack
from benchmarks.stream_server import HOST, StreamServer
from benchmarks.two_shards import SHARDS, TwoShards
from benchmarks.workloads import Workload
from event_token.errors import Halt

LATENCY = "streams.commit_to_client"
CLIENTS = "streams.clients"
NAMES = (LATENCY, CLIENTS)
# As many as a server takes, beside as many as cost nothing of their own.
MANY, FEW = 1_000, 10
# Rows of each shard in a second: a tenth of them is of the table that the clients ask for.
WANTED_PER_S, OTHERS_PER_S = 50, 450
WANTED, OTHERS = "wanted_rows", "other_rows"
MEASURE_S, MEASURE_S_QUICK = 20.0, 10.0
# The load goes on while a thousand clients connect.
CONNECT_S_MAX = 300.0
# Far fewer than the server opens at a time.
CONNECTING_MAX = 16
RECEIVE_BYTES = 256 * 1024
POLL_S = 0.2
SSE = "text/event-stream"
NDJSON = "application/x-ndjson"


def run(stack: Stack, names: Sequence[str], *, runs: int, quick: bool) -> list[Figure]:
    """Measure `runs` times each."""
    figures: list[Figure] = []
    if LATENCY in names:
        figures += _latency(stack, runs=runs, quick=quick)
    if CLIENTS in names:
        figures += _clients(stack, runs=runs, quick=quick)
    return figures


def _latency(stack: Stack, *, runs: int, quick: bool) -> list[Figure]:
    """A client of NDJSON beside a Subscriber, one after the other in each turn."""
    measure_s = latency.MEASURE_S_QUICK if quick else latency.MEASURE_S
    turns: dict[int, list[Turn]] = {50: [], 99: []}
    warm_up_s = latency.BROKER_WARM_UP_S_QUICK
    for number in range(1, runs + 1):
        stack.report(f"{LATENCY}: turn {number} of {runs}")
        theirs_ms = latency.measure(stack, f"subscribed{number}", warm_up_s, measure_s)
        warm_up_s = latency.WARM_UP_S
        ours_ms = latency.measure(stack, f"streamed{number}", warm_up_s, measure_s, _Streamed)
        for percent, each in turns.items():
            each.append(Turn(percentile(ours_ms, percent), percentile(theirs_ms, percent)))
    return [
        figure(f"{LATENCY}.p{percent}", "ms", each, peer="Subscriber")
        for percent, each in turns.items()
    ]


class _Streamed:
    """A client of the whole keyspace, which parses each line."""

    def __init__(self, shards: TwoShards) -> None:
        self._shards = shards
        self._server = StreamServer(shards.settings)
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Self:
        self._server.__enter__()
        self._connection = http.client.HTTPConnection(
            HOST, self._server.port, timeout=latency.ARRIVE_S_MAX
        )
        path = f"/v1/streams/{self._shards.keyspace}?start=earliest"
        self._connection.request("GET", path, headers={"accept": NDJSON})
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._connection is not None:
            self._connection.close()
        self._server.__exit__(*exc_info)

    def receive(self, count: int) -> dict[str, dict[int, int]]:
        """See `latency.Receiver`."""
        if self._connection is None:
            raise Halt("the client is not open")
        arrived_ns: dict[str, dict[int, int]] = {shard: {} for shard in SHARDS}
        missing = count * len(SHARDS)
        rest = b""
        with self._connection.getresponse() as answer:
            while missing > 0 and (chunk := answer.read1(RECEIVE_BYTES)):
                now_ns = time.monotonic_ns()
                *lines, rest = (rest + chunk).split(b"\n")
                for event in map(json.loads, lines):
                    if event["type"] == "ROW" and event["table"] == self._shards.keyspace:
                        times = arrived_ns[event["shard"]]
                        number = event["after"]["id"]
                        if number in times:
                            raise Halt(f"row {number} of shard {event['shard']} arrived twice")
                        times[number] = now_ns
                        missing -= 1
        if missing:
            self._shards.check_alive()
            raise Halt(f"the stream ended with {missing} of {count * len(SHARDS)} rows missing")
        return arrived_ns


def _clients(stack: Stack, *, runs: int, quick: bool) -> list[Figure]:
    """The server's processor time with many clients, beside that with a few."""
    measure_s = MEASURE_S_QUICK if quick else MEASURE_S
    turns = []
    for number in range(1, runs + 1):
        stack.report(f"{CLIENTS}: turn {number} of {runs}")
        many, few = (
            _cores_with(stack, f"clients{number}of{count}", count, measure_s)
            for count in (MANY, FEW)
        )
        turns.append(Turn(many, few))
    return [figure(f"{CLIENTS}.cpu", "processor s per s", turns, peer=f"{FEW} clients")]


def _cores_with(stack: Stack, keyspace: str, count: int, measure_s: float) -> float:
    """Return the processor seconds that a server takes each second for `count` clients.

    Halt unless each gets the rows of its table.
    """
    rates = {f"{WANTED}_{keyspace}": WANTED_PER_S, f"{OTHERS}_{keyspace}": OTHERS_PER_S}
    wanted = next(iter(rates))
    for index in range(len(SHARDS)):
        for table in rates:
            create_table(stack.mysql(index), Workload(f"streams.{table}", 0, 1))
    with ExitStack() as opened:
        shards = opened.enter_context(TwoShards(stack, keyspace))
        shards.wait_for_heads(time.time_ns() // 1000)
        server = opened.enter_context(StreamServer(shards.settings))
        ids = range(int((CONNECT_S_MAX + measure_s) * max(rates.values())))
        for database in shards.servers:
            for table, per_s in rates.items():
                each_per_s = per_s * latency.WRITERS_PER_SHARD  # this one writes alone
                writer = latency.start_writer(database, table, ids, each_per_s)
                opened.callback(writer.wait)
                opened.callback(writer.kill)
        path = f"/v1/streams/{keyspace}?table={DATABASE}.{wanted}"
        clients = opened.enter_context(_Clients(server.port, path, count))
        begun_s, begun_cpu_s = time.monotonic(), server.cpu_s()
        begun = clients.rows
        time.sleep(measure_s)
        took_s, cpu_s = time.monotonic() - begun_s, server.cpu_s() - begun_cpu_s
        rows = (clients.rows - begun) / count / took_s
        clients.check()
        shards.check_alive()
    stack.report(f"{count} clients: {rows:.1f} rows/s each, {cpu_s / took_s:.3f} processors")
    if not 0.9 <= rows / (WANTED_PER_S * len(SHARDS)) <= 1.1:
        raise Halt(f"{count} clients got {rows:.1f} rows/s each: the machine is too slow for it")
    return cpu_s / took_s


class _Clients:
    """Live clients in a thread, which counts the rows and drops them."""

    def __init__(self, port: int, path: str, count: int) -> None:
        self._port, self._count = port, count
        self._request = (
            f"GET {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nAccept: {SSE}\r\n\r\n"
        ).encode()
        self._sockets: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._is_over = threading.Event()
        self._ended = 0
        self.rows = 0

    def __enter__(self) -> Self:
        """Connect all; each has its first watermark then. Raises Halt for one that is refused."""
        self._thread.start()
        try:
            with ThreadPoolExecutor(CONNECTING_MAX) as pool:
                list(pool.map(self._connect, range(self._count)))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over.set()
        self._thread.join()
        for each in self._sockets:
            each.close()
        self._selector.close()

    def check(self) -> None:
        """Raise Halt if a stream has ended."""
        if self._ended:
            raise Halt(f"{self._ended} of {self._count} streams have ended")

    def _connect(self, _number: int) -> None:
        """Open one; a stream that has no reader for it yet says when to come back."""
        deadline_s = time.monotonic() + CONNECT_S_MAX
        while time.monotonic() < deadline_s:
            opened = socket.create_connection((HOST, self._port), CONNECT_S_MAX)
            opened.sendall(self._request)
            found = b""
            while b"event: watermark" not in found:
                chunk = opened.recv(RECEIVE_BYTES)
                found += chunk
                if not chunk or b"\r\n\r\n:" in found or b" 200 " not in found[:16]:
                    break
            else:
                opened.setblocking(False)
                self._sockets.append(opened)
                self._selector.register(opened, selectors.EVENT_READ)
                return
            opened.close()
            if b" 200 " not in found[:16]:
                raise Halt(f"a client was refused: {found.splitlines()[-1]!r}")
            time.sleep(POLL_S)
        raise Halt(f"a client was not served within {CONNECT_S_MAX:.0f} s")

    def _read(self) -> None:
        while not self._is_over.is_set():
            for key, _ in self._selector.select(POLL_S):
                found = key.fileobj.recv(RECEIVE_BYTES)  # type: ignore[union-attr]  # a socket
                self.rows += found.count(b"event: row")  # one that is cut in two hardly matters
                if not found:
                    self._ended += 1
                    self._selector.unregister(key.fileobj)
