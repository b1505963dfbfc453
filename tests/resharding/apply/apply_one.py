"""Runs one applier as a process, for tests that kill it. Settings come as a line of JSON."""

import json
import sys
import threading

from event_token import Flavor
from resharding.apply.applier import ApplierSettings, run_applier
from resharding.bookkeeping import ReshardPlan
from resharding.servers import ReshardServer
from topics.kafka.client import ClientConfig


def main() -> None:
    """Apply until killed."""
    told = json.loads(sys.stdin.readline())
    shard, flavor = told["shard"]
    settings = ApplierSettings(
        plan=ReshardPlan.from_json(told["plan"], "the test"),
        target=ReshardServer(*told["target"], shard=shard, flavor=Flavor(flavor)),
        kafka=ClientConfig(told["kafka"]),
    )
    run_applier(settings, threading.Event())


if __name__ == "__main__":
    main()
