"""The pooled connections of a second database: who may use one, and after what it is closed."""

import psycopg
import pymysql
import pytest

from tests.forks import in_children
from tests.interrupts import Interrupt, SoftTimeLimit, lines_raised
from tests.sinks.database.followed import ON_MARIADB_TOO, Followed, Item

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
STEP = 97
CALLS = 20


@ON_MARIADB_TOO
@pytest.mark.parametrize("error", [SoftTimeLimit, Interrupt])
def test_the_next_call_gets_its_own_answer(followed: Followed, error: type[BaseException]) -> None:
    """What ends a call within its driver also ends the connection, which is in a pool."""
    followed.apply([Item(1, 1, 100)])
    database = followed.database
    applied, held = database.applied(), database.held()

    def check() -> None:
        assert database.held() == held

    def call() -> None:
        assert database.applied() == applied

    assert lines_raised(call, check, error, pymysql, psycopg, step=STEP) > 3


@ON_MARIADB_TOO
def test_a_forked_process_has_a_pool_of_its_own(followed: Followed) -> None:
    """Parent and child ask different questions at the same time, and get their own answers."""
    followed.apply([Item(1, 1, 100)])
    database = followed.database
    applied, held = database.applied(), database.held()

    def ask_applied() -> None:
        for _ in range(CALLS):
            assert database.applied() == applied

    wait = in_children(ask_applied)
    for _ in range(CALLS):
        assert database.held() == held
    wait()
