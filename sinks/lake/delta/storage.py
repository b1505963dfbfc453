"""The folder of a table, on a file system or an object store."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError, DeltaProtocolError, SchemaMismatchError
from deltalake.fs import DeltaStorageHandler
from obstore.exceptions import (
    AlreadyExistsError,
    GenericError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import LocalStore, ObjectStore, from_url
from pyarrow import fs

from event_token.errors import Halt, Retry, UsageError

# A full disk and a store that is away are generic errors.
NOT_WRITTEN = (GenericError, PermissionDeniedError, UnauthenticatedError, OSError)
# Characters of a store's error, which may hold the whole answer of a server.
REASON_MAX = 500
# Options of HTTP, which delta-rs takes among those of the store.
CLIENT_OPTIONS = frozenset(
    {"allow_http", "allow_invalid_certificates", "connect_timeout", "timeout", "proxy_url"}
)


@contextmanager
def written_by_delta_rs(url: str) -> Iterator[None]:
    """Translate the errors of delta-rs as `Storage.write` does those of the store."""
    try:
        yield
    except (DeltaProtocolError, SchemaMismatchError):
        raise
    except (DeltaError, OSError) as error:
        raise cannot_write(url, error) from error


def cannot_write(place: str, error: Exception) -> Retry:
    """Return the error of a storage that is full, not reachable or not ours."""
    reason = " ".join(str(error).split())[:REASON_MAX]
    return Retry(f"{place} cannot be written: {reason}")


def filesystem_of(url: str, options: Mapping[str, str]) -> fs.PyFileSystem:
    """Return a folder or URL as Arrow's file system; `options` are those of delta-rs."""
    handler: Any = DeltaStorageHandler(url, dict(options))
    return fs.PyFileSystem(handler)


def dataset_of(
    url: str, options: Mapping[str, str], paths: Sequence[str], schema: pa.Schema
) -> ds.Dataset:
    """Return some Parquet files of a table; columns that a file lacks are null."""
    filesystem = filesystem_of(url, options)
    return ds.dataset([*paths], schema=schema, format="parquet", filesystem=filesystem)


class Storage:
    """Files below a URL, by paths relative to it; `options` are those of delta-rs."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.url = url
        self.options = dict(options)
        is_local = "://" not in url or url.startswith("file://")
        self._folder = Path(url.removeprefix("file://")) if is_local else None
        self._store = self._open()

    def _open(self) -> ObjectStore:
        if self._folder is not None:
            return LocalStore(self._folder, mkdir=True)
        stores, client = {}, {}
        for key, value in self.options.items():
            name = key.lower()
            client_name = name.removeprefix("aws_").removeprefix("azure_").removeprefix("google_")
            if client_name in CLIENT_OPTIONS:
                client[client_name] = value
            else:
                stores[name] = value
        any_stores: Any = stores
        any_client: Any = client
        try:
            store: ObjectStore = from_url(self.url, config=any_stores, client_options=any_client)
        except (ValueError, UnknownConfigurationKeyError) as error:
            raise UsageError(f"{self.url}: {str(error).partition(chr(10))[0]}") from error
        return store

    def create(self, path: str, content: bytes) -> bool:
        """Write a file unless there is one of this name; return whether it was written.

        One atomic step: link() on a file system, a conditional PUT on an object store. Retry: it
        may have been written or not.
        """
        try:
            obstore.put(self._store, path, content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        except NOT_WRITTEN as error:
            raise cannot_write(f"{self.url}/{path}", error) from error
        return True

    def write(self, path: str, content: bytes) -> None:
        """Write a file of a new name. Retry: the storage is full, not reachable or not ours."""
        try:
            obstore.put(self._store, path, content)
        except NOT_WRITTEN as error:
            raise cannot_write(f"{self.url}/{path}", error) from error

    def read(self, path: str) -> bytes:
        """Return the content of a file; FileNotFoundError."""
        return bytes(obstore.get(self._store, path).bytes())

    def written(self, path: str) -> datetime | None:
        """Return when a file was written, None if there is none."""
        try:
            return obstore.head(self._store, path)["last_modified"]
        except FileNotFoundError:
            return None

    def read_ranges(self, path: str, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        """Return some parts of a file; FileNotFoundError."""
        parts = obstore.get_ranges(self._store, path, starts=starts, ends=ends)
        return [bytes(part) for part in parts]

    def parquet(self, path: str) -> pq.ParquetFile:
        """Open a Parquet file. Halt if it is missing."""
        try:
            if self._folder is not None:
                return pq.ParquetFile(self._folder / path, memory_map=True)
            # Arrow cannot read the files of obstore, which do not say whether they are closed.
            file = filesystem_of(self.url, self.options).open_input_file(path)
            return pq.ParquetFile(file, pre_buffer=True)
        except FileNotFoundError as error:
            raise Halt(
                f"{self.url}/{path} is missing, which belongs to the table: restore it, or write "
                f"the table again"
            ) from error

    def names(self, folder: str = "", after: str | None = None) -> Iterator[tuple[str, datetime]]:
        """Yield (path, time of its last change) of all files below a folder, at any depth."""
        for batch in obstore.list(self._store, prefix=folder, offset=after):
            for file in batch:
                yield file["path"], file["last_modified"]

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files."""
        obstore.delete(self._store, paths)
