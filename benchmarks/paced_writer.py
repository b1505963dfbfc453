"""One writer of the latency benchmark, as a process: `python -m benchmarks.paced_writer`.

Commits single-row transactions at a steady rate, and reports at the end when each returned.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable

import pymysql

from event_token.errors import Halt

# A response without rows is a packet of less than this.
ANSWER_BYTES_MAX = 4096
_COM_QUERY = b"\x03"
_OK = b"\x00"


def write_paced(
    connection: "pymysql.Connection", table: str, ids: Iterable[int], *, per_s: float
) -> list[int]:
    """Insert rows with these ids; return when each commit returned (monotonic ns).

    A writer that falls behind its rate continues without pausing.
    """
    returned_ns = []
    # Bypasses the client's cursors: the load must cost little beside what is measured.
    socket = connection._sock  # noqa: SLF001 - PyMySQL has no other way to it
    begun_ns = time.monotonic_ns()
    for number, row_id in enumerate(ids):
        command = _COM_QUERY + (
            f"INSERT INTO {table} VALUES ({row_id}, 7, 'a title of an order', 12.34, 'new', "
            "'a note of some length that goes with the order', NOW(3), NOW(6))"
        ).encode("ascii")
        due_ns = begun_ns + int(number * 1_000_000_000 / per_s)
        if (early_ns := due_ns - time.monotonic_ns()) > 0:
            time.sleep(early_ns / 1e9)
        # Three bytes of length, the packet's number, and its content.
        socket.sendall(len(command).to_bytes(3, "little") + b"\0" + command)
        answer = socket.recv(ANSWER_BYTES_MAX)
        returned_ns.append(time.monotonic_ns())
        if answer[4:5] != _OK:
            message = f"row {row_id} of {table} was refused: {answer[4:]!r}"
            raise Halt(message)
    return returned_ns


def main() -> None:
    """Read the arguments, write, print the times as one JSON list."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--host", "--user", "--database", "--table"):
        parser.add_argument(name, required=True)
    for name in ("--port", "--first", "--step", "--end"):
        parser.add_argument(name, required=True, type=int)
    parser.add_argument("--per-s", required=True, type=float)
    options = parser.parse_args()
    connection = pymysql.connect(
        host=options.host,
        port=options.port,
        user=options.user,
        database=options.database,
        autocommit=True,
        ssl_disabled=True,  # the load must cost little beside what is measured
    )
    with connection:
        ids = range(options.first, options.end, options.step)
        times = write_paced(connection, options.table, ids, per_s=options.per_s)
    json.dump(times, sys.stdout)


if __name__ == "__main__":
    main()
