"""Runs `shardstream ARGUMENTS` and sends itself a signal before a step of a switch or cancel.

    python -m tests.resharding.command_at SIGNAL STEP ARGUMENTS

STEP: the how manieth of this run, from 1, or what it does ("write BEGIN").
"""

import itertools
import os
import signal
import sys
from typing import Any

from resharding.switch import executor as switch
from resharding.switch.decision import Action
from shardstream.commands.app import main


def send_at(signal_name: str, wanted: str) -> None:
    """Make the process send itself the signal when it reaches the step."""
    run_class: Any = switch._Run
    do = run_class._do
    count = itertools.count(1)

    def do_then(run: Any, step: Any, view: Any) -> None:
        if step.action is not Action.FENCE and wanted in {str(next(count)), step.action.value}:
            os.kill(os.getpid(), signal.Signals[signal_name])
        do(run, step, view)

    run_class._do = do_then


if __name__ == "__main__":
    send_at(*sys.argv[1:3])
    sys.argv[1:] = sys.argv[3:]
    main()
