"""`mysqlbinlog --raw`: the server's own client, which copies binlog files without decoding rows."""

import os
import shutil
import subprocess
import time
from pathlib import Path

from benchmarks.binlog_fill import Waiting
from benchmarks.figures import DrainRates, drain_rates
from benchmarks.watch import cpu_seconds, sample_until
from event_token.errors import Halt, UsageError
from shardstream.local.database_server import MysqlServer
from shardstream.local.processes import with_parent_guard

PEER = "mysqlbinlog --raw"
KILL_S_MAX = 10.0
# It copies 60 MB in a third of a second, and polling a folder costs nothing.
SAMPLE_S = 0.01


def drain_to_files(server: MysqlServer, waiting: Waiting, folder: Path) -> DrainRates:
    """Copy the stretch to files in `folder`; return rates in the stretch's rows, by bytes written.

    Raises UsageError if there is no mysqlbinlog, Halt if it fails.
    """
    dump = server.binaries().binlog_dump
    if not dump:
        message = "no mysqlbinlog program beside this MySQL server: install mysql-client-core"
        raise UsageError(message)
    folder.mkdir()
    log_path = folder.with_suffix(".log")
    command = [
        *dump,
        "--read-from-remote-server",
        "--raw",
        "--to-last-log",
        f"--host={server.host}",
        f"--port={server.port}",
        f"--user={server.root_user}",
        "--protocol=TCP",
        "--ssl-mode=DISABLED",
        f"--result-file={folder}/",
        waiting.first_file,
    ]
    with log_path.open("wb") as log:
        started_at_s = time.monotonic()
        process = subprocess.Popen(
            with_parent_guard(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            samples = sample_until(
                lambda: _bytes_in(folder),
                lambda _: _has_ended(process.pid),
                # Not reaped yet, so its times can still be read.
                cpu_s=lambda: cpu_seconds(process.pid),
                sample_s=SAMPLE_S,
                check_alive=lambda: None,
            )
        finally:
            process.kill()
            status = process.wait(KILL_S_MAX)
    shutil.rmtree(folder)
    if status != 0:
        message = f"mysqlbinlog ended with status {status}: {log_path.read_text()[-500:]}"
        raise Halt(message)
    return drain_rates(samples, messages=waiting.rows, started_at_s=started_at_s)


def _bytes_in(folder: Path) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(folder))


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
