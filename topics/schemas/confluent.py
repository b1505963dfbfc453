"""Schema ids from a registry with Confluent's REST interface."""

import base64
import json
import threading
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

from event_token.errors import Halt, Retry, UsageError
from topics.records.wire import SCHEMA_ID_MAX

_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"

# A registry answers in milliseconds; a leader change takes seconds.
_REQUEST_TIMEOUT_S: Final = 10.0

# Far above the schema of any table (4,096 columns); keeps a wrong server from filling memory.
_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024

_NOT_FOUND: Final = 404
_TOO_MANY_REQUESTS: Final = 429
_SERVER_FAULT: Final = 500


class RegistrySchemaIds:
    """Schema ids of a Confluent-compatible registry.

    Each table has its own subject, `shardstream.<database>.<table>`, with compatibility NONE: DDL
    decides on the next version of a table, and every record carries the id of its schema. Name
    and password may be given in the URL or in `auth`. Thread-safe. No connection is made before
    the first call.
    """

    def __init__(
        self,
        url: str,
        *,
        subject_prefix: str = "shardstream",
        auth: tuple[str, str] | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError("the schema registry's URL must be http://host[:port] or https://")
        if parts.username is not None and auth is None:
            auth = (unquote(parts.username), unquote(parts.password or ""))
        host = parts.netloc.rpartition("@")[2]
        self._base = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        self._prefix = subject_prefix
        self._headers = {"Content-Type": _CONTENT_TYPE, "Accept": _CONTENT_TYPE}
        if auth is not None:
            pair = base64.b64encode(f"{auth[0]}:{auth[1]}".encode()).decode()
            self._headers["Authorization"] = f"Basic {pair}"
        self._lock = threading.Lock()
        self._ids: dict[str, int] = {}
        self._texts: dict[int, str] = {}
        self._subjects: set[str] = set()

    def __repr__(self) -> str:
        return f"RegistrySchemaIds({self._base!r})"

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
                answer = self._call("GET", f"/schemas/ids/{schema_id}", None)
                if answer is None:
                    raise Halt(
                        f"schema {schema_id} is not in the registry {self._base}: a record was "
                        f"written with another registry",
                    )
                self._texts[schema_id] = self._field(answer, "schema", str)
            return self._texts[schema_id]

    def newest_of(self, database: str, table: str) -> tuple[int, str] | None:
        """Return id and text of the newest version of a table, None if it has none."""
        subject = quote(f"{self._prefix}.{database}.{table}", safe="")
        answer = self._call("GET", f"/subjects/{subject}/versions/latest", None)
        if answer is None:
            return None
        return self._field(answer, "id", int), self._field(answer, "schema", str)

    def _register(self, text: str) -> int:
        subject = quote(self._subject_of(text), safe="")
        if subject not in self._subjects:
            self._must("PUT", f"/config/{subject}", {"compatibility": "NONE"})
            self._subjects.add(subject)
        answer = self._must(
            "POST",
            f"/subjects/{subject}/versions",
            {"schemaType": "AVRO", "schema": text},
        )
        schema_id: int = self._field(answer, "id", int)
        if not 0 <= schema_id <= SCHEMA_ID_MAX:
            raise Halt(f"the registry {self._base} returned {schema_id}, which is not a schema id")
        # Readers must get exactly the registered schema, even if the registry normalises it.
        back = self._must("GET", f"/schemas/ids/{schema_id}", None)
        if json.loads(self._field(back, "schema", str)) != json.loads(text):
            raise Halt(
                f"the registry {self._base} changed a schema of {subject}: id {schema_id} does "
                f"not read back as it was registered",
            )
        return schema_id

    def _subject_of(self, text: str) -> str:
        schema = json.loads(text)
        if "table" in schema:
            return f"{self._prefix}.{schema['database']}.{schema['table']}"
        return f"{self._prefix}.{schema['name']}"

    def _field(self, answer: dict[str, Any], name: str, of: type) -> Any:
        value = answer.get(name)
        if not isinstance(value, of):
            raise Halt(f"the registry {self._base} returned an answer without {name!r}")
        return value

    def _must(self, method: str, path: str, body: dict[str, str] | None) -> dict[str, Any]:
        answer = self._call(method, path, body)
        if answer is None:
            raise UsageError(
                f"{method} {self._base}{path}: not found: is this a Confluent-compatible registry?",
            )
        return answer

    def _call(self, method: str, path: str, body: dict[str, str] | None) -> dict[str, Any] | None:
        """Return the answer of the registry, None for 404."""
        payload = None if body is None else json.dumps(body).encode()
        request = Request(  # noqa: S310 - the scheme is checked at construction
            self._base + path,
            data=payload,
            headers=self._headers,
            method=method,
        )
        doing = f"{method} {self._base}{path}"
        try:
            with urlopen(request, timeout=_REQUEST_TIMEOUT_S) as response:  # noqa: S310
                answer = json.loads(response.read(_ANSWER_BYTES_MAX))
        except HTTPError as error:
            if error.code == _NOT_FOUND:
                return None
            reason = error.read(500).decode(errors="replace")
            if error.code >= _SERVER_FAULT or error.code == _TOO_MANY_REQUESTS:
                raise Retry(f"{doing}: {error.code} {reason}") from error
            raise UsageError(f"{doing}: {error.code} {reason}") from error
        except (URLError, TimeoutError, ConnectionError) as error:
            raise Retry(f"{doing}: the schema registry does not answer: {error}") from error
        except ValueError as error:
            raise UsageError(f"{doing}: the answer is not JSON: {error}") from error
        if not isinstance(answer, dict):
            raise UsageError(f"{doing}: the answer is not a JSON object")
        return answer
