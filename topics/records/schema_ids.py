"""What a schema registry gives: a small number for a schema's text, and the text back."""

from typing import Protocol


class SchemaIds(Protocol):
    """Schema ids of a keyspace; both directions are cached, and an id never changes."""

    def register(self, text: str) -> int:
        """Return the id of a schema, registering it at first; it can be read back by then."""

    def text_of(self, schema_id: int) -> str:
        """Return the schema of an id; Halt when there is none."""
