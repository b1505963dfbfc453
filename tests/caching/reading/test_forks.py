"""A reader that has read before its process forks, as one that gunicorn preloads."""

from functools import partial

from tests.caching.reading.reading import allow_reads, by_pymysql, reader_of, run
from tests.database_servers import DatabaseFixture
from tests.forks import in_children

READS = 100


def test_a_forked_process_reads_its_own_answers(database: DatabaseFixture) -> None:
    """Parent and children read other rows at the same time, each over a connection of its own."""
    # With TLS what one of them reads makes no sense to another one, which connects again.
    connect = partial(by_pymysql, ssl_disabled=True)
    with database.one_table() as (name, _), reader_of(database, connect=connect) as reader:
        allow_reads(database, name)
        run(database, f"INSERT INTO {name}.t VALUES (1), (2), (3)")

        def read(number: int) -> None:
            for _ in range(READS):
                found = reader.execute(f"SELECT id FROM {name}.t WHERE id = %s", (number,))
                assert found.rows == [(number,)]

        read(1)
        wait = in_children(partial(read, 2), partial(read, 3))
        read(1)
        wait()
