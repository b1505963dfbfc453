"""An applier until it has applied a number of rows: `python -m benchmarks.costs.applier_job JOB`.

A process of its own, so that its memory is that of the applier alone.
"""

import json
import sys
import threading
import time
from pathlib import Path

from benchmarks.own_memory import peak_mb
from event_token import Flavor
from event_token.errors import Halt
from resharding.apply.applier import ApplierSettings, run_applier
from resharding.bookkeeping import ReshardPlan, read_checkpoints
from resharding.servers import ReshardServer, open_session
from topics.kafka.client import ClientConfig

APPLY_S_MAX = 300.0
POLL_S = 0.1


def main(job_path: Path) -> None:
    """Apply; print the peak of resident memory in MB."""
    job = json.loads(job_path.read_text())
    plan = ReshardPlan.from_json(job["plan"], str(job_path))
    target = ReshardServer(
        job["host"], job["port"], job["user"], "", shard=plan.targets[0], flavor=Flavor.MYSQL
    )
    settings = ApplierSettings(plan, target, ClientConfig({"bootstrap.servers": job["brokers"]}))
    stop = threading.Event()
    watcher = threading.Thread(target=_stop_at, args=(settings, job["rows"], stop), daemon=True)
    watcher.start()
    run_applier(settings, stop)
    json.dump(peak_mb(), sys.stdout)


def _stop_at(settings: ApplierSettings, rows: int, stop: threading.Event) -> None:
    """Stop the applier when its checkpoint has reached `rows`, or at the end of its time."""
    source, reshard_id = settings.plan.sources[0], settings.plan.reshard_id
    deadline_s = time.monotonic() + APPLY_S_MAX
    connection = open_session(settings.target)
    try:
        while (seq := read_checkpoints(connection, reshard_id)[source].seq) < rows:
            if time.monotonic() > deadline_s:
                raise Halt(f"{seq} of {rows} rows were applied within {APPLY_S_MAX:g} s")
            time.sleep(POLL_S)
    finally:
        connection.close()
        stop.set()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
