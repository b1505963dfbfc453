"""Asks the HTTP server of a process."""

import http.client

REQUEST_S_MAX = 60


def get(port: int, path: str, token: str = "") -> tuple[int, str]:
    """Status and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_S_MAX)
    try:
        connection.request("GET", path, headers={"authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
