"""What follows a row image that lacks columns, where no stored row has their values."""

from enum import StrEnum


class OnPartial(StrEnum):
    """What follows a partial row image (MINIMAL, NOBLOB) that meets no stored row."""

    STOP = "stop"
    INSERT_NULLS = "insert-nulls"
