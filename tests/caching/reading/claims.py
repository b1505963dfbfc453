"""What tokens claim while others commit, and what the rows that came with them hold."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from event_token import Flavor, GtidSet, parse_gtid_set
from tests.caching.reading.reading import reader_of, run
from tests.database_servers import DatabaseFixture
from tests.producers.servers.replication import executed

WRITERS = 3
READS = 150
READS_PER_INTERRUPTION = 10


@dataclass(frozen=True)
class Claim:
    """Of one read: the inserts that its token has, and those that its rows show."""

    in_token: int
    in_rows: int


def count_of(position: GtidSet) -> int:
    """A number that each further transaction raises by one, whatever else the server executed."""
    parts = str(position).split(",")
    if position.flavor is Flavor.MARIADB:
        return sum(int(part.rpartition("-")[2]) for part in parts)
    intervals = [
        interval.partition("-")
        for part in parts
        for interval in part.split(":")[1:]
        if interval[0].isdigit()  # a tag begins with a letter
    ]
    return sum(int(last or first) - int(first) + 1 for first, _, last in intervals)


@contextmanager
def writing(database: DatabaseFixture, name: str) -> Iterator[None]:
    """Insert into the table from several threads, one row per transaction."""
    ending = threading.Event()

    def write(first: int) -> None:
        with database.connect() as connection, connection.cursor() as cursor:
            number = first
            while not ending.is_set():
                cursor.execute(f"INSERT INTO {name}.t VALUES ({number})")
                number += WRITERS

    writers = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        ending.set()
        for writer in writers:
            writer.join()


def claims_beside_writers(
    primary: DatabaseFixture, server: DatabaseFixture, name: str, interruption: str
) -> list[Claim]:
    """Read from a server while nothing else than these writers commits on its primary."""
    claims = []
    base = count_of(parse_gtid_set(executed(primary), primary.flavor))
    with reader_of(server) as reader, writing(primary, name):
        for number in range(READS):
            if number % READS_PER_INTERRUPTION == 0:
                run(server, interruption)
            found = reader.execute(f"SELECT COUNT(*) FROM {name}.t")
            if found.token is not None:
                in_token = count_of(found.token.position) - base
                claims.append(Claim(in_token, found.rows[0][0]))
    return claims
