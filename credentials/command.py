"""Commands that print one line: a secret, or what a tool of the host says."""

import subprocess
from collections.abc import Sequence
from typing import Final

from credentials.errors import SecretUnavailable

# Clouds' tools take one to three seconds; a person at a start waits for this.
COMMAND_S_MAX: Final = 30.0
# A token of Entra has some 3 kB. Anything longer is neither a token nor a password.
OUTPUT_BYTES_MAX: Final = 64 * 1024
# What a command writes when it fails, in our message.
_STDERR_CHARS_MAX: Final = 500


def command_output(what: str, command: Sequence[str], s_max: float | None = None) -> str:
    """Return the one line that a command prints within `s_max`, None: COMMAND_S_MAX.

    SecretUnavailable, naming `what`, if it prints none. No message contains what it printed to
    standard output: that may be the secret.
    """
    name = f"{what}: the command {command[0]}"
    s_max = COMMAND_S_MAX if s_max is None else s_max
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=s_max,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SecretUnavailable(
            f"{name} did not end within {s_max:g} s; run it by hand as the same user"
        ) from None  # the exception holds what was printed
    except OSError as error:
        raise SecretUnavailable(f"{name} cannot be run: {error.strerror}") from error
    if ended.returncode:
        stderr = " ".join(ended.stderr.decode(errors="replace").split())[-_STDERR_CHARS_MAX:]
        raise SecretUnavailable(
            f"{name} failed with status {ended.returncode}: {stderr or '(it wrote no error)'}"
        )
    lines = ended.stdout.decode(errors="replace").splitlines()
    if len(lines) != 1 or not lines[0].strip() or len(ended.stdout) > OUTPUT_BYTES_MAX:
        raise SecretUnavailable(
            f"{name} must print one line of at most {OUTPUT_BYTES_MAX} bytes; it printed "
            f"{len(lines)} lines of {len(ended.stdout)} bytes"
        )
    return lines[0].strip()
