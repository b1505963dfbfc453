"""Registers the schemas of table topics: subjects TOPIC-key and TOPIC-value."""

from event_token.errors import UsageError
from topics.errors import SchemaRefused
from topics.schemas import RegistryClient


class SubjectIds:
    """Ids of the schemas that this process has registered. Not thread-safe.

    The registry's own compatibility rule holds for the subjects; its default, BACKWARD, admits all
    changes of a table except some of a column's type.
    """

    def __init__(self, url: str) -> None:
        self._client = RegistryClient(url)
        self._ids: dict[tuple[str, str], int] = {}

    def register(self, subject: str, text: str) -> int:
        """Return the id of a schema, registering it if it is new; UsageError if it is refused."""
        found = self._ids.get((subject, text))
        if found is None:
            try:
                found = self._added(subject, text)
            except SchemaRefused as error:
                raise UsageError(
                    f"{error}. Older messages cannot be read with the table's new version: to "
                    f"write it all the same, set the compatibility of subject {subject} to NONE "
                    f"(of Apicurio Registry remove the global rule too) and restart the query"
                ) from error
            self._ids[subject, text] = found
        return found

    def _added(self, subject: str, text: str) -> int:
        try:
            return self._client.add_schema(subject, text)
        except SchemaRefused:
            # When two tasks register a new subject at the same time, Apicurio refuses one of them.
            # Then the schema is there, and the second call returns its id.
            return self._client.add_schema(subject, text)
