"""Schema ids kept in memory, for tests that need no broker."""

from event_token.errors import Halt


class MemorySchemaIds:
    """Numbers schemas in the order in which they come."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def register(self, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text)

    def text_of(self, schema_id: int) -> str:
        if schema_id >= len(self.texts):
            raise Halt(f"schema {schema_id} is not known")
        return self.texts[schema_id]
