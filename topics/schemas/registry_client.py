"""Calls to a schema registry with Confluent's REST interface."""

import base64
import json
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

from event_token.errors import Halt, Retry, UsageError
from topics.errors import SchemaRefused
from topics.records.wire import SCHEMA_ID_MAX

_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"

# A registry answers in milliseconds; a leader change takes seconds.
_REQUEST_TIMEOUT_S: Final = 10.0

# Far above the schema of any table (4,096 columns); keeps a wrong server from filling memory.
_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024

_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_TOO_MANY_REQUESTS: Final = 429
_SERVER_FAULT: Final = 500


class RegistryClient:
    """A registry at a URL, which may contain name and password; `auth` gives them apart.

    No connection is made before the first call. Retry when the registry does not answer or fails,
    UsageError when it refuses a call.
    """

    def __init__(self, url: str, auth: tuple[str, str] | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError("the schema registry's URL must be http://host[:port] or https://")
        if parts.username is not None and auth is None:
            auth = (unquote(parts.username), unquote(parts.password or ""))
        host = parts.netloc.rpartition("@")[2]
        self.base = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        self._headers = {"Content-Type": _CONTENT_TYPE, "Accept": _CONTENT_TYPE}
        if auth is not None:
            pair = base64.b64encode(f"{auth[0]}:{auth[1]}".encode()).decode()
            self._headers["Authorization"] = f"Basic {pair}"

    def add_schema(self, subject: str, text: str) -> int:
        """Register an Avro schema as the newest version of a subject and return its id.

        SchemaRefused if it is not compatible with those that the subject has.
        """
        answer = self.must(
            "POST",
            f"/subjects/{quote(subject, safe='')}/versions",
            {"schemaType": "AVRO", "schema": text},
        )
        schema_id: int = self.field(answer, "id", int)
        if not 0 <= schema_id <= SCHEMA_ID_MAX:
            raise Halt(f"the registry {self.base} returned {schema_id}, which is not a schema id")
        return schema_id

    def field(self, answer: dict[str, Any], name: str, of: type) -> Any:
        """Return a field of an answer; Halt when it is missing."""
        value = answer.get(name)
        if not isinstance(value, of):
            raise Halt(f"the registry {self.base} returned an answer without {name!r}")
        return value

    def must(self, method: str, path: str, body: dict[str, str] | None) -> dict[str, Any]:
        """Return the answer; UsageError for 404."""
        answer = self.call(method, path, body)
        if answer is None:
            raise UsageError(
                f"{method} {self.base}{path}: not found: is this a Confluent-compatible registry?",
            )
        return answer

    def call(self, method: str, path: str, body: dict[str, str] | None) -> dict[str, Any] | None:
        """Return the answer, None for 404."""
        payload = None if body is None else json.dumps(body).encode()
        request = Request(  # noqa: S310 - the scheme is checked at construction
            self.base + path,
            data=payload,
            headers=self._headers,
            method=method,
        )
        doing = f"{method} {self.base}{path}"
        try:
            with urlopen(request, timeout=_REQUEST_TIMEOUT_S) as response:  # noqa: S310
                answer = json.loads(response.read(_ANSWER_BYTES_MAX))
        except HTTPError as error:
            if error.code == _NOT_FOUND:
                return None
            reason = error.read(500).decode(errors="replace")
            if error.code >= _SERVER_FAULT or error.code == _TOO_MANY_REQUESTS:
                raise Retry(f"{doing}: {error.code} {reason}") from error
            refused = SchemaRefused if error.code == _CONFLICT else UsageError
            raise refused(f"{doing}: {error.code} {reason}") from error
        except (URLError, TimeoutError, ConnectionError) as error:
            raise Retry(f"{doing}: the schema registry does not answer: {error}") from error
        except ValueError as error:
            raise UsageError(f"{doing}: the answer is not JSON: {error}") from error
        if not isinstance(answer, dict):
            raise UsageError(f"{doing}: the answer is not a JSON object")
        return answer
