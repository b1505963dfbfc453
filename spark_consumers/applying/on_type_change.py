"""What a sink does about a column whose versions no type can hold. Pure."""

from enum import StrEnum


class OnTypeChange(StrEnum):
    """What follows a type that cannot be widened: an error, or a new column `name__v2`."""

    HALT = "halt"
    NEW_COLUMN = "new-column"
