"""The settings of caches."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import Field, SecretStr

from caching.client.options import CacheOptions
from caching.protocol import Layout
from event_token import ShardName, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSection(CacheOptions):
    """One cache: the keyspace whose rows it holds, its store, and its choices.

    `store` is a URL without a password, which is in a file or in a variable. `keys` is the KeyMap,
    as module:object.
    """

    keyspace: str
    store: str
    keys: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
    password_file: Path | None = None
    password_env: str | None = None

    def url(self, password: SecretStr) -> str:
        """Return the URL of the store, with the password in it if there is one."""
        secret = password.get_secret_value()
        if not secret:
            return self.store
        parts = urlsplit(self.store)
        user, _, host = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}:{quote(secret, safe='')}@{host}"))

    def problems(self, name: str, keyspaces: Iterable[str]) -> list[str]:
        """Return what is wrong with it beyond types and bounds, one line each."""
        found = []
        try:
            Layout(name, self.buckets)
            for key_range in self.key_ranges:
                ShardName.parse(key_range)
        except UsageError as error:
            found.append(str(error))
        if self.store.startswith("memory:") and self.key_ranges != ("-",):
            found.append("key_ranges: a store in memory has one invalidator, of all keys (-)")
        if self.keyspace not in keyspaces:
            known = ", ".join(sorted(keyspaces)) or "none"
            found.append(f"unknown keyspace {self.keyspace!r}; the settings name: {known}")
        if urlsplit(self.store).password is not None:
            found.append("store: a password stands in it; use password_file or password_env")
        return [f"caches.{name}: {problem}" for problem in found]
