"""What goes in comes out: in the change log, the second database and the cache."""

from tests.ecosystem.stack import ComposeStack, wait_for

POSTGRES = "postgresql://follower@postgres/reports"
_CHANGES = "SELECT count(*) AS rows FROM log WHERE type = 'ROW' AND op <> 'READ'"
_REPEATED = (
    "SELECT count(*) AS rows FROM (SELECT shard, seq FROM log GROUP BY shard, seq "
    "HAVING count(*) > 1) AS repeated"
)


def assert_rows_out_are_rows_in(stack: ComposeStack) -> None:
    """Stop the shop; every change that it committed is in every copy, once. Start it again."""
    with stack.stopped_shop():
        written = stack.changes_in()
        assert written > 0, "the shop has written nothing"
        wait_for(
            f"the change log has the {written} changes of the shop",
            lambda: stack.query(_CHANGES)[0]["rows"] >= written,
        )
        # pytest explains the assertions of test modules alone.
        changes = stack.query(_CHANGES)[0]["rows"]
        assert changes == written, f"the change log has {changes} changes, the shop made {written}"
        repeated = stack.query(_REPEATED)[0]["rows"]
        assert repeated == 0, f"{repeated} changes are in the change log twice"
        # Row by row; with the shop stopped, both come to agree for good.
        verify = ("shardstream", "database", "verify", "commerce", "--to", POSTGRES)
        wait_for("PostgreSQL has the same rows", lambda: stack.succeeds("database", *verify))
        pages = ("shardstream-shop", "pages")
        wait_for("the cache has the same rows", lambda: stack.succeeds("invalidate", *pages))
