"""`verify` on real servers: clean under live writes, and it names every row that differs."""

from contextlib import ExitStack

import pytest

from resharding.verify import Verified, VerifySettings, verify_target
from shardstream.local.kafka_cluster import KafkaCluster
from tests.conftest import DatabaseFixture
from tests.producers.producing import wait_for
from tests.resharding.shards import (
    admin_of,
    applying,
    begin,
    checkpoint_seqs,
    sources_of,
    wait_applied,
)
from tests.resharding.test_applier import fresh_schema, settings_of
from tests.resharding.writers import USERS, make_tables, shard_of, vindexes_of, writing

# The rows written at first, and some hundred of the writers'.
SEQS_MIN = 3_500


@pytest.mark.parametrize(
    ("source_shards", "target_shards"), [(("-",), ("-80", "80-")), (("-80", "80-"), ("-",))]
)
def test_verify_under_live_writes(
    source_shards: tuple[str, ...],
    target_shards: tuple[str, ...],
    clean_servers: list[DatabaseFixture],
    kafka: KafkaCluster,
    keyspace: str,
) -> None:
    """Targets that follow are clean while four writers write; rows that differ are named."""
    source_databases = dict(zip(source_shards, clean_servers, strict=False))
    targets = dict(zip(target_shards, clean_servers[len(source_shards) :], strict=False))
    schema = fresh_schema()
    with ExitStack() as stack:
        sources = stack.enter_context(sources_of(source_databases, kafka, keyspace))
        for database in [*source_databases.values(), *targets.values()]:
            make_tables(database, schema)
        plan = sources.plan(target_shards, vindexes_of(schema), agreed_seqs=sources.last_seqs())
        begin(plan, targets)

        def verified(shard: str) -> Verified:
            return verify_target(
                VerifySettings(
                    plan,
                    admin_of(targets[shard], shard),
                    {s: admin_of(d, s) for s, d in source_databases.items()},
                    sources.kafka,
                )
            )

        # More rows than a chunk holds.
        for shard, database in source_databases.items():
            users = [u for u in range(USERS) if shard_of(u, source_shards) == shard]
            with database.connect(database=schema) as connection, connection.cursor() as cursor:
                cursor.executemany(
                    "INSERT INTO sessions VALUES (%s, %s, 0)",
                    [(user, f"s{n}") for user in users for n in range(6)],
                )
        appliers = [
            stack.enter_context(applying(settings_of(plan, shard, database, sources)))
            for shard, database in targets.items()
        ]
        with writing(source_databases, schema):
            wait_for(
                "the targets follow",
                lambda: all(
                    sum(checkpoint_seqs(d, plan.reshard_id).values()) > SEQS_MIN
                    for d in targets.values()
                ),
            )
            for _ in range(3):
                for shard in targets:
                    found = verified(shard)
                    assert found.named == ()
                    assert found.rows > 1_000
        wait_applied(sources, plan.reshard_id, targets, appliers)

        shard, database = next(iter(targets.items()))
        user = next(u for u in range(USERS) if shard_of(u, target_shards) == shard)
        with database.connect(database=schema) as connection, connection.cursor() as cursor:
            cursor.execute(
                "UPDATE sessions SET hits = 77 WHERE user_id = %s AND name = 's1'", (user,)
            )
            cursor.execute("DELETE FROM sessions WHERE user_id = %s AND name = 's2'", (user,))
            cursor.execute("INSERT INTO sessions VALUES (%s, 'S2', 0)", (user,))
        broken = verified(shard)

        assert {(d.table, d.key, d.what) for d in broken.named} == {
            (f"{schema}.sessions", f"user_id={user}, name=s1", "it differs in hits"),
            (f"{schema}.sessions", f"user_id={user}, name=s2", "it is missing on the target"),
            (f"{schema}.sessions", f"user_id={user}, name=S2", "it is on the target alone"),
        }
        with database.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT differing FROM _shardstream.verified")
            assert cursor.fetchall() == ((3,),)
