"""Tokens of SASL/OAUTHBEARER, which a command of the user's prints and Kafka's clients ask for.

In the place of a command, `AWS_MSK_IAM` and a region have AWS's own signer make them.
"""

import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final

from credentials.command import command_output
from credentials.errors import SecretUnavailable
from credentials.per_process import PerProcess
from event_token.errors import UsageError
from topics.kafka.errors import LoginEnded

# Kafka's client asks again after four fifths of a token's life; others may use it until a half.
_SHARED_LIFE: Final = 0.5

# In the place of a program: the signer of the extra `aws`.
AWS_MSK_IAM: Final = "aws-msk-iam"

_FORM: Final = '{"token": "...", "expires_at": SECONDS_SINCE_1970, "principal": "..."}'


@dataclass(frozen=True, slots=True)
class LoginToken:
    """A bearer token; times in seconds since 1970."""

    text: str = field(repr=False)
    asked_s: float
    expires_s: float
    principal: str

    def may_be_shared(self, now_s: float) -> bool:
        """Whether another client may begin with it."""
        return now_s < self.asked_s + (self.expires_s - self.asked_s) * _SHARED_LIFE


# By command: all clients of a process share a token.
_tokens: dict[tuple[str, ...], LoginToken] = {}
_lock = PerProcess(threading.Lock)


def current_token(command: tuple[str, ...]) -> LoginToken:
    """Return a token that is at most half spent.

    SecretUnavailable if the command prints none; LoginEnded if it has printed one before.
    """
    with _lock.here():
        token = _tokens.get(command)
        now_s = time.time()
        if token is None or not token.may_be_shared(now_s):
            try:
                token = _tokens[command] = _parse(_asked(command), now_s)
            except SecretUnavailable as error:
                if token is None:
                    raise
                # Who hands out tokens may be away for a while.
                if token.expires_s <= now_s:
                    raise LoginEnded(str(error)) from error
        return token


def _asked(command: tuple[str, ...]) -> str:
    """Return what a command prints, or what the signer gives in its form."""
    if command[0] != AWS_MSK_IAM:
        return command_output("kafka.oauth", command)
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # noqa: PLC0415 - of an extra
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise UsageError(
            f"kafka.oauth: provider {AWS_MSK_IAM} needs AWS's signer ({error.name} is not "
            f"installed): pip install 'shardstream[aws]'"
        ) from error
    try:
        text, expires_ms = MSKAuthTokenProvider.generate_auth_token(command[1])
    except AttributeError as error:  # it takes None for credentials where none are found
        raise SecretUnavailable(
            "kafka.oauth: AWS's signer gives no token: this process has no credentials of AWS "
            "(a role, a profile, or variables)"
        ) from error
    except (BotoCoreError, ClientError, ValueError) as error:
        raise SecretUnavailable(f"kafka.oauth: AWS's signer gives no token: {error}") from error
    return json.dumps({"token": text, "expires_at": expires_ms / 1_000})


def _parse(line: str, now_s: float) -> LoginToken:
    problem = ""
    try:
        found: Any = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("token"), str):
        problem = "is not an object with a token"
    elif not isinstance(found.get("expires_at"), int | float):
        problem = "has no expires_at, or it is not a number: nobody knows when to ask again"
    elif found["expires_at"] <= now_s:
        problem = f"has expires_at {found['expires_at']:.0f}, which has passed: it is in seconds"
    elif not isinstance(found.get("principal", ""), str):
        problem = "has a principal that is not a text"
    if problem:
        raise SecretUnavailable(f"kafka.oauth: what the command printed {problem}; wanted: {_FORM}")
    return LoginToken(found["token"], now_s, float(found["expires_at"]), found.get("principal", ""))
