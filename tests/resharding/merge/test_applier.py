"""The applier with the histories of the model, on real servers."""

import random

import pytest

from tests.database_servers import DatabaseFixture
from tests.resharding.merge.histories import history_of
from tests.resharding.merge.served_history import COMPUTED, LOOSE, PLAIN, MergeTarget, TableKind

FAMILIES = ["mysql_a", "mariadb_a"]
SEEDS = range(12)
MANY_SEEDS = range(12, 250)


def check_histories(target: MergeTarget, seeds: range) -> int:
    """Apply histories, across kills; return how many rows waited aside between two appliers.

    At the checkpoint of each, the table and what waits aside are the sources' rows.
    """
    waited = 0
    for seed in seeds:
        history = history_of(seed, has_copies=seed % 3 == 0)
        dice = random.Random(seed)
        plan, records = target.begin(history), target.records(history)
        for _ in range(dice.choice((0, 1, 2))):
            killed_at = dice.randrange(2 * len(history.batches))
            target.apply(plan, records, history.batches, killed_at=killed_at)
            aside, commits = target.aside(plan), target.commits(plan, records)
            waited += len(aside)
            if commits >= history.exact_at:
                both = {*target.rows(), *aside}
                assert both == {row.n for _, row in history.union(commits)}, seed
        target.apply(plan, records, history.batches)
        assert target.rows() == target.wanted(history), seed
        assert target.aside(plan) == set(), seed
    return waited


@pytest.mark.usefixtures("real_servers")
@pytest.mark.parametrize("family", FAMILIES)
def test_some_histories(family: str, request: pytest.FixtureRequest) -> None:
    """Rows and unique values that travel between the sources of a merge are all on the target."""
    database: DatabaseFixture = request.getfixturevalue(family)
    assert check_histories(MergeTarget(database, PLAIN), SEEDS)


@pytest.mark.full
@pytest.mark.usefixtures("real_servers")
@pytest.mark.parametrize(
    ("family", "kind"),
    [*((family, kind) for family in FAMILIES for kind in (PLAIN, LOOSE)), ("mysql_a", COMPUTED)],
    ids=["mysql", "mysql-loose", "mariadb", "mariadb-loose", "mysql-computed"],
)
def test_many_histories(family: str, kind: TableKind, request: pytest.FixtureRequest) -> None:
    """The same of many, with collations, prefixes and expressions that the server compares by."""
    database: DatabaseFixture = request.getfixturevalue(family)
    assert check_histories(MergeTarget(database, kind), MANY_SEEDS)
