"""The errors of reading secrets."""

from event_token.errors import UsageError


class SecretUnavailable(UsageError):  # noqa: N818 - named by what happened
    """Raised when the file or the command that a secret comes from does not give it.

    What hands out secrets may be away for a while.
    """
