"""Schema ids from a registry with Confluent's REST interface."""

import json
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from event_token.errors import Halt, UsageError
from topics.errors import SchemaRefused
from topics.schemas.registry_client import RegistryClient


class RegistrySchemaIds:
    """Schema ids of a Confluent-compatible registry.

    Each table has its own subject, `shardstream.<keyspace>.<database>.<table>`, with compatibility
    NONE: DDL decides on the next version of a table, and every record carries the id of its schema.
    Name and password may be given in the URL or in `auth`. Thread-safe. No connection is made
    before the first call.
    """

    def __init__(
        self,
        url: str,
        *,
        subject_prefix: str = "shardstream",
        auth: tuple[str, str] | None = None,
    ) -> None:
        self._client = RegistryClient(url, auth)
        self._prefix = subject_prefix
        self._lock = threading.Lock()
        self._ids: dict[str, int] = {}
        self._texts: dict[int, str] = {}
        self._subjects: set[str] = set()

    def __repr__(self) -> str:
        return f"RegistrySchemaIds({self._client.base!r})"

    def register(self, text: str) -> int:
        """Return the id of a schema, registering it if it is new."""
        with self._lock:
            if text not in self._ids:
                schema_id = self._register(text)
                self._texts.setdefault(schema_id, text)
                self._ids[text] = schema_id
            return self._ids[text]

    def text_of(self, schema_id: int) -> str:
        """Return the schema with this id; Halt when the registry has none."""
        with self._lock:
            if schema_id not in self._texts:
                answer = self._client.call("GET", f"/schemas/ids/{schema_id}", None)
                if answer is None:
                    raise Halt(
                        f"schema {schema_id} is not in the registry {self._client.base}: a "
                        f"record was written with another registry",
                    )
                self._texts[schema_id] = self._client.field(answer, "schema", str)
            return self._texts[schema_id]

    def newest_of(self, keyspace: str | None, database: str, table: str) -> tuple[int, str] | None:
        """Return id and text of the newest version of a keyspace's table, None if it has none.

        Keyspace None: of the versions of earlier producers, which do not name theirs.
        """
        named = {"keyspace": keyspace, "database": database, "table": table}
        subject = quote(self._subject_of(named), safe="")
        answer = self._client.call("GET", f"/subjects/{subject}/versions/latest", None)
        if answer is None:
            return None
        schema_id = self._client.field(answer, "id", int)
        text: str = self._client.field(answer, "schema", str)
        schema = json.loads(text)
        # Names may contain dots, so two tables may share a subject.
        is_its = all(schema.get(name) == value for name, value in named.items())
        return (schema_id, text) if is_its else None

    def _register(self, text: str) -> int:
        subject = self._subject_of(json.loads(text))
        config = f"/config/{quote(subject, safe='')}"
        rule = {"compatibility": "NONE"}
        if subject not in self._subjects and self._client.call("PUT", config, rule) is not None:
            self._subjects.add(subject)
        try:
            schema_id = self._client.add_schema(subject, text)
        except SchemaRefused as error:
            raise UsageError(
                f"{error}. Versions of a table are what its DDL makes them, so nothing may check "
                f"subject {subject}: remove the registry's global rule, which in Apicurio Registry "
                f"holds in spite of a subject's NONE"
            ) from error
        if subject not in self._subjects:
            # Apicurio has a rule only of a subject that exists; its first schema breaks none.
            self._client.must("PUT", config, rule)
            self._subjects.add(subject)
        # Readers must get exactly the registered schema, even if the registry normalises it.
        back = self._client.must("GET", f"/schemas/ids/{schema_id}", None)
        if json.loads(self._client.field(back, "schema", str)) != json.loads(text):
            raise Halt(
                f"the registry {self._client.base} changed a schema of {subject}: id {schema_id} "
                f"does not read back as it was registered",
            )
        return schema_id

    def _subject_of(self, schema: Mapping[str, Any]) -> str:
        if "table" not in schema:
            return f"{self._prefix}.{schema['name']}"
        keyspace = schema.get("keyspace")
        owner = self._prefix if keyspace is None else f"{self._prefix}.{keyspace}"
        return f"{owner}.{schema['database']}.{schema['table']}"
