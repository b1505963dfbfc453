"""Free ports on loopback."""

import secrets
import socket

from event_token.errors import Halt

HOST = "127.0.0.1"
# Below the range from which Linux takes the ports of outgoing connections (32768 on): else a
# client's connection could sit on a server's port when that server starts again.
PORT_MIN = 15000
PORT_MAX = 32000
ATTEMPTS_MAX = 1000


def is_free(port: int) -> bool:
    """Say whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a connection that lingers in TIME_WAIT does not make a port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def answers(port: int) -> bool:
    """Say whether anything accepts connections on the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


def free_ports(count: int) -> list[int]:
    """Give `count` different free ports. Raises Halt when the machine has none left.

    They are picked at random, so that stacks that start at the same moment rarely meet.
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
