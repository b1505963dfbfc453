"""What version 1 of each format has written."""

import json
from typing import Any

from tests.recorded.written import FILE
from tests.topics.schemas.memory_schema_ids import MemorySchemaIds

RECORDED: dict[str, Any] = json.loads(FILE.read_text())


def schemas() -> MemorySchemaIds:
    """The registered schemas, by their ids."""
    ids = MemorySchemaIds()
    ids.texts = list(RECORDED["schemas"])
    return ids
