"""Run the servers' own regression suites, and compare the log of each file with SELECT.

`make peers` runs both families; `python -m tests.peers mariadb --match partition` chooses.
"""

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pymysql

from databases.sql import quoted, rows
from event_token import Flavor, MysqlGtidSet, ShardstreamError
from shardstream.local.database_server import NOT_DURABLE, LocalAccount
from tests.database_servers import DatabaseFixture, end
from tests.peers.accepted import accepted
from tests.peers.replay import SYSTEM, Replay, Replica, ReplicaError
from tests.peers.suites import Suites, mariadb_suites, mysql_suites, run_file
from tests.producers.decoder.capture import capture, executed_set
from tests.producers.decoder.decoding import Sink, new_decoder
from tests.producers.servers.replication import follow, statements

SUITES = {"mysql": mysql_suites, "mariadb": mariadb_suites}
# A file with more is a fault that repeats.
HALTS_MAX = 200
# One wrong table gives many.
FAULTS_SHOWN = 4
FAULT_CHARACTERS = 700
GTID = re.compile(r"transaction ([0-9a-f-]{36}:\S*?\d+|\d+-\d+-\d+)")


class Family:
    """One family's server, its replica, and what has been seen."""

    def __init__(self, suites: Suites, folder: Path, *, verbose: bool) -> None:
        self.suites = suites
        self.verbose = verbose
        self._folder = folder
        self.halts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.totals: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self._started = 0
        self._start()

    def _start(self) -> None:
        self.source, self.replica = (self._server() for _ in range(2))
        follow(self.replica, self.source)
        kind = "REPLICA" if self.suites.flavor is Flavor.MYSQL else "SLAVE"
        statements(self.replica, f"STOP {kind}")
        if self.suites.flavor is Flavor.MYSQL:
            statements(self.replica, "START REPLICA IO_THREAD")
        # The suites' files name messages that their own driver is not to count.
        statements(
            self.source,
            "CREATE DATABASE mtr",
            "CREATE PROCEDURE mtr.add_suppression(pattern VARCHAR(255)) BEGIN END",
        )
        self.variables = self._variables()

    def _server(self) -> DatabaseFixture:
        self._started += 1
        server = self.suites.server(
            self._folder / str(self._started),
            server_id=9300 + self._started,
            account=LocalAccount("shardstream", "of this run alone"),
            # A replica that applies side by side can stop with transactions half applied.
            extra_args=(*NOT_DURABLE, "--loose-replica-parallel-workers=1"),
            die_with_parent=True,
        )
        server.start()
        return DatabaseFixture(server)

    def close(self) -> None:
        """End both servers."""
        for each in (self.source, self.replica):
            end(each.server)

    def run(self, path: Path) -> None:
        """Run one file, and compare."""
        name = path.relative_to(self.suites.folder).as_posix()
        before = executed_set(self.source)
        statements(self.source, "CREATE DATABASE IF NOT EXISTS test")
        ended = run_file(self.suites, path, self.source)
        self.totals["files"] += 1
        self.totals["files that ended early"] += bool(ended)
        if ended:
            self.notes[f"ended early: {re.sub(r'[0-9]+|.[^ ]*[/.][^ ]*', '_', ended)[:100]}"] += 1
            if self.verbose:
                print(f"  {name}: {ended}")
        replay = Replay(Replica(self.replica))
        try:
            self._replay(name, before, replay)
            if replay.ended:
                self._restart()
            else:
                self._clear()
        except (pymysql.MySQLError, ReplicaError, AssertionError) as error:
            self.notes[f"servers made again after {name}: {str(error)[:150]}"] += 1
            self._restart()
        self.notes += replay.notes
        self.totals["events"] += replay.events
        self.totals["tables compared"] += replay.compared
        self.faults += [f"{name}: {text}" for text in replay.differences]

    def _restart(self) -> None:
        self.close()
        self._start()

    def _replay(self, name: str, before: str, replay: Replay) -> None:
        position = before
        sink = Sink()
        for _ in range(HALTS_MAX):
            stream = capture(self.source, position)
            sink.messages.clear()
            decoder = new_decoder(sink, self.suites.flavor, position)
            stop = ""
            taken = 0
            try:
                while taken < len(stream):  # transaction by transaction: a halt is behind them all
                    taken = decoder.feed(stream, taken, len(stream), 1)
                    position = decoder.take_batch().position
            except ShardstreamError as halt:
                found = GTID.search(str(halt))
                if found is None:
                    self.faults.append(f"{name}: {type(halt).__name__} without a GTID: {halt}")
                    return
                stop = found.group(1)
                reason = accepted(halt)
                self.halts[reason or f"NOT ACCEPTED: {type(halt).__name__}"] += 1
                if reason is None:
                    self.faults.append(f"{name}: {type(halt).__name__}: {halt}")
            for event in sink.events():
                if event.gtid != stop:
                    replay.add(event)
            if not stop:
                replay.finish(self._last())
                return
            replay.skip(stop)
            position = self._past(position, stop)
        self.faults.append(f"{name}: more than {HALTS_MAX} halts")

    def _past(self, position: str, gtid: str) -> str:
        """The position behind a transaction that is passed."""
        if self.suites.flavor is Flavor.MARIADB:
            return gtid
        return str(MysqlGtidSet.parse(f"{position},{gtid}" if position else gtid))

    def _variables(self) -> dict[str, str]:
        with self.source.connect() as connection:
            return dict(rows(connection, "SHOW GLOBAL VARIABLES"))

    def _clear(self) -> None:
        """Remove what the file left: databases, sessions and settings."""
        with self.source.connect() as connection, connection.cursor() as cursor:
            mine = connection.thread_id()
            for (session,) in rows(
                connection,
                "SELECT id FROM information_schema.processlist WHERE user = 'root' AND id <> %s",
                (mine,),
            ):
                cursor.execute(f"KILL {session}")
            now = self._variables()
            for name, value in self.variables.items():
                if now.get(name) != value and not name.startswith(("gtid_", "timestamp")):
                    try:
                        cursor.execute(f"SET GLOBAL {name} = %s", (_number(value),))
                    except pymysql.MySQLError:
                        self.notes[f"not set back: {name}"] += 1
            cursor.execute("SET foreign_key_checks = 0, sql_log_bin = 1")
            for (database,) in rows(connection, "SHOW DATABASES"):
                if database not in SYSTEM:
                    cursor.execute(f"DROP DATABASE {quoted(database)}")
        Replica(self.replica).run_to(self._last(), before=False)

    def _last(self) -> str:
        """What a replica has to reach: all that was executed, on MariaDB its last transaction."""
        executed = executed_set(self.source)
        return executed if self.suites.flavor is Flavor.MYSQL else executed.split(",")[-1]


def _number(value: str) -> int | str:
    return int(value) if value.isdecimal() else value


def main(arguments: Sequence[str]) -> int:
    """Print what each family's files showed; 1 where the log differs or a halt is not accepted."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=__doc__)
    parser.add_argument("families", nargs="*", choices=[[], *SUITES], help="default: both")
    parser.add_argument("--match", default="", help="only files whose path has this")
    parser.add_argument("--every", type=int, default=1, help="every Nth file")
    parser.add_argument("--verbose", action="store_true", help="why files ended early")
    options = parser.parse_args(arguments)
    is_good = True
    for name in options.families or SUITES:
        suites = SUITES[name]()
        files = [path for path in suites.files if options.match in str(path)][:: options.every]
        with tempfile.TemporaryDirectory(prefix="shardstream-peers-") as folder:
            family = Family(suites, Path(folder), verbose=options.verbose)
            try:
                for number, path in enumerate(files, 1):
                    known = len(family.faults)
                    family.run(path)
                    for fault in family.faults[known:][:FAULTS_SHOWN]:
                        print(f"  {fault[:FAULT_CHARACTERS]}", flush=True)
                    if number % 50 == 0:
                        print(f"{name}: {number} of {len(files)} files", flush=True)
            finally:
                family.close()
        print(f"{name}: " + ", ".join(f"{n} {what}" for what, n in family.totals.items()))
        for text, n in [*family.halts.most_common(), *family.notes.most_common(40)]:
            print(f"  {n} x {text}")
        print(f"{name}: {len(family.faults)} faults")
        is_good = is_good and not family.faults
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
