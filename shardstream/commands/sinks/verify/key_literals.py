"""Values of a target's primary key as SQL literals of the source. Pure."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

_MICROSECOND = timedelta(microseconds=1)


def key_literal(value: object) -> str:
    """Return the literal of a value as the target's driver returns it; sessions speak UTC."""
    match value:
        case int() | Decimal():
            return str(value)
        case float():
            return repr(value)
        case str():
            return f"_utf8mb4 x'{value.encode().hex()}'"
        case bytes() | memoryview():
            return f"x'{bytes(value).hex()}'"
        case datetime():
            moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
            return f"'{moment.isoformat(' ', 'microseconds')}'"
        case date():
            return f"'{value.isoformat()}'"
        case timedelta():
            return _time(value)
        case list() | set() | frozenset():
            return key_literal(",".join(map(str, value)))
        case _:
            raise ValueError(f"a key cannot hold a {type(value).__name__}")


def _time(value: timedelta) -> str:
    micros = abs(value) // _MICROSECOND
    seconds, micros = divmod(micros, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    sign = "-" if value < timedelta() else ""
    return f"'{sign}{hours:02d}:{minutes:02d}:{seconds:02d}.{micros:06d}'"
