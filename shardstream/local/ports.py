"""Free ports on loopback."""

import secrets
import socket
from collections.abc import Callable

from event_token.errors import Halt

HOST = "127.0.0.1"
# Below the range of Linux's ephemeral ports (from 32768): otherwise a client's connection could
# occupy a server's port when that server restarts.
PORT_MIN = 15000
PORT_MAX = 32000
ATTEMPTS_MAX = 1000
# Another process can take a free port before the server listens on it; thrice in a row is a fault.
STARTS_MAX = 3


def is_free(port: int) -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a connection that lingers in TIME_WAIT does not make a port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def answers(port: int) -> bool:
    """Return whether anything accepts connections on the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports. Raises Halt if the machine has none left.

    They are picked at random, so that stacks that start at the same time rarely collide.
    """
    found: list[int] = []
    for _ in range(ATTEMPTS_MAX):
        if len(found) == count:
            return found
        port = PORT_MIN + secrets.randbelow(PORT_MAX - PORT_MIN)
        if port not in found and is_free(port):
            found.append(port)
    message = f"no {count} free ports between {PORT_MIN} and {PORT_MAX} on {HOST}"
    raise Halt(message)


def finish_start(
    wait_ready: Callable[[], None],
    abandon: Callable[[], bool],
    launch_again: Callable[[], None],
) -> None:
    """Wait for servers that were launched; launch them again if their new ports were taken.

    `abandon` kills what `wait_ready` has failed on by a Halt, and returns whether other ports
    could help; if not, the Halt is raised.
    """
    for attempt in range(1, STARTS_MAX + 1):
        try:
            wait_ready()
        except Halt:
            if not abandon() or attempt == STARTS_MAX:
                raise
            launch_again()
        else:
            return
