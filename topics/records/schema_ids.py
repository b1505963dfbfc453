"""The interface of a schema registry: from the text of a schema to its id, and back."""

from typing import Protocol


class SchemaIds(Protocol):
    """Schema ids of a keyspace. Both directions are cached; ids never change."""

    def register(self, text: str) -> int:
        """Return the id of a schema, registering it if it is new; it is then readable."""

    def text_of(self, schema_id: int) -> str:
        """Return the schema with this id; Halt when there is none."""
