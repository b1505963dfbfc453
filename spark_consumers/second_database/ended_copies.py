"""Copies that ended before their table had a row: the target gets a table with its first row."""

from collections.abc import Collection

from sqlalchemy import Connection, inspect

from spark_consumers.second_database.dialect import Dialect, rows_of, run

Source = tuple[str, str]  # database, table


class EndedCopies:
    """Keeps the shards of such copies for the table to come, in the caller's transaction."""

    def __init__(self, dialect: Dialect, follower: str) -> None:
        """Keep the dialect. `follower`: the name under which the copies are kept."""
        self._dialect = dialect
        self._follower = follower
        self._place = dialect.internal("ended_copies")

    def create(self, connection: Connection) -> None:
        """Create the table where it is missing."""
        schema, name = self._dialect.internal_name("ended_copies")
        if inspect(connection).has_table(name, schema=schema or None):
            return
        kind = self._dialect.meta_types["name"]
        columns = ("follower", "source_database", "source_table", "shard")
        self._dialect.create_own(
            connection,
            self._place,
            ", ".join(f"{column} {kind} NOT NULL" for column in columns),
            is_numbered=True,
        )

    def shards(self, connection: Connection) -> dict[Source, set[str]]:
        """Return the shards by database and name of the source's table."""
        found: dict[Source, set[str]] = {}
        for database, table, shard in rows_of(
            connection,
            f"SELECT source_database, source_table, shard FROM {self._place} "
            f"WHERE follower = :follower",
            {"follower": self._follower},
        ):
            found.setdefault((database, table), set()).add(shard)
        return found

    def add(self, connection: Connection, source: Source, shards: Collection[str]) -> None:
        """Keep shards of a table."""
        for shard in sorted(shards):
            run(
                connection,
                f"INSERT INTO {self._place} (follower, source_database, source_table, shard) "
                f"VALUES (:follower, :database, :table, :shard)",
                {**self._of(source), "shard": shard},
            )

    def remove(self, connection: Connection, source: Source) -> None:
        """Forget the shards of a table, which the target has now."""
        run(
            connection,
            f"DELETE FROM {self._place} WHERE follower = :follower AND "
            f"source_database = :database AND source_table = :table",
            self._of(source),
        )

    def _of(self, source: Source) -> dict[str, str]:
        return {"follower": self._follower, "database": source[0], "table": source[1]}
