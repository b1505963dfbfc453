"""Exceptions from outside in the middle of a read: time limits, signal handlers, Ctrl-C."""

import pymysql
import pytest

import caching
from tests.caching.reading.reading import allow_reads, reader_of, run
from tests.database_servers import DatabaseFixture
from tests.interrupts import Interrupt, SoftTimeLimit, lines_raised

# PyMySQL's half-made results complain when they are dropped.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
ERRORS = (SoftTimeLimit, Interrupt)


def raised_in_reads(database: DatabaseFixture, error: type[BaseException], step: int) -> int:
    """Interrupt reads of one row, and read another one after each; return how often."""
    with database.one_table() as (name, _):
        allow_reads(database, name)
        run(database, f"INSERT INTO {name}.t VALUES (1), (2)")
        with reader_of(database) as reader:

            def read(number: int) -> list[object]:
                return reader.execute(f"SELECT id FROM {name}.t WHERE id = %s", (number,)).rows

            def check() -> None:
                assert read(2) == [(2,)]

            check()
            return lines_raised(lambda: read(1), check, error, caching, pymysql, step=step)


@pytest.mark.parametrize("error", ERRORS)
def test_the_next_read_gets_its_own_answer(
    database: DatabaseFixture, error: type[BaseException]
) -> None:
    """What ends a read somewhere leaves no answer for the next one, and no open transaction."""
    assert raised_in_reads(database, error, step=193) > 10


@pytest.mark.full
@pytest.mark.parametrize("error", ERRORS)
def test_the_next_read_gets_its_own_answer_wherever_it_ends(
    database: DatabaseFixture, error: type[BaseException]
) -> None:
    """The same at many more lines of the reader and of its driver."""
    assert raised_in_reads(database, error, step=23) > 90
