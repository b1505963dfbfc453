"""Open the store that a URL names. A new kind of store is one module and one entry of `_KINDS`."""

from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import Final

from caching.errors import LayoutError, StoreExtraMissing
from caching.protocol.layout import BUCKETS_DEFAULT
from caching.stores.store import FLOORS_OPTIONS, OPEN_S, TIMEOUT_MS, FloorStore, Store, StoreOptions
from credentials.secret import Secret
from event_token import ClockUncertainty


@dataclass(frozen=True, slots=True)
class StoreKind:
    """A kind of store: the schemes of its URLs, and the module that opens it.

    The module has the functions `open_client` and `open_floors` of URL, cache, buckets and
    StoreOptions. `extra` installs its client library. `is_in_process`: the store belongs to one
    process, which invalidates it; its module needs no `open_floors`. `takes_password`: its servers
    know accounts.
    """

    schemes: tuple[str, ...]
    module: str
    extra: str = ""
    is_in_process: bool = False
    takes_password: bool = False

    def load(self) -> ModuleType:
        """Import the module; StoreExtraMissing if its client library is not installed."""
        try:
            return import_module(self.module)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("caching"):
                raise
            raise StoreExtraMissing(
                f"{error.name} is not installed; it comes with an extra: "
                f"pip install 'shardstream[{self.extra}]'"
            ) from error


_REDIS_SCHEMES: Final = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")
_KINDS: Final = (
    StoreKind(_REDIS_SCHEMES, "caching.stores.on_redis.store", "redis", takes_password=True),
    StoreKind(("memcached",), "caching.stores.memcached", "memcached"),
    StoreKind(("memory",), "caching.stores.memory", is_in_process=True),
)
_BY_SCHEME: Final = {scheme: kind for kind in _KINDS for scheme in kind.schemes}


def store_kind(url: str) -> StoreKind:
    """Return the kind of store that a URL names; LayoutError if it names none."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _BY_SCHEME:
        # The URL may hold a password.
        raise LayoutError(
            f"the URL of a cache's store begins with "
            f"{', '.join(f'{each}://' for each in _BY_SCHEME)}, not with '{url.partition(':')[0]}'"
        )
    return _BY_SCHEME[scheme]


def _kind(url: str, password: Secret | None) -> StoreKind:
    kind = store_kind(url)
    if password is not None and not kind.takes_password:
        raise LayoutError(f"{url.partition(':')[0]} has no passwords: give none for this store")
    return kind


def open_store(
    url: str,
    cache: str,
    buckets: int = BUCKETS_DEFAULT,
    *,
    is_async: bool = False,
    timeout_ms: int = TIMEOUT_MS,
    open_s: float = OPEN_S,
    stale_ok_s: int = 0,
    password: Secret | None = None,
    clock: ClockUncertainty = ClockUncertainty(),  # noqa: B008 - frozen
) -> Store:
    """Open a client's side of a cache's store; it connects when it is first used.

    `is_async`: for asyncio. `timeout_ms` is how long it waits for a server, `open_s` how long it
    leaves one alone that did not answer. `stale_ok_s`: see `CacheOptions`; its invalidator has to
    have the same. `password`: of the URL's user, read at each connection. `clock`: how far the
    clocks of the database's servers may be off. Raises LayoutError on a URL, name or number of
    buckets that cannot be used, StoreExtraMissing if the client library is not installed.
    """
    options = StoreOptions(
        is_async=is_async,
        timeout_ms=timeout_ms,
        open_s=open_s,
        stale_ok_s=stale_ok_s,
        password=password,
        clock_uncertainty=clock,
    )
    store: Store = _kind(url, password).load().open_client(url, cache, buckets, options)
    return store


def open_floors(
    url: str,
    cache: str,
    buckets: int = BUCKETS_DEFAULT,
    *,
    stale_ok_s: int = 0,
    password: Secret | None = None,
    clock: ClockUncertainty = ClockUncertainty(),  # noqa: B008 - frozen
) -> FloorStore:
    """Open the invalidator's side; see `open_store`. LayoutError for a store of one process."""
    kind = _kind(url, password)
    if kind.is_in_process:
        raise LayoutError(
            "a store in memory belongs to one process, which invalidates it by itself; an "
            "invalidator needs Redis or memcached"
        )
    options = replace(
        FLOORS_OPTIONS, stale_ok_s=stale_ok_s, password=password, clock_uncertainty=clock
    )
    floors: FloorStore = kind.load().open_floors(url, cache, buckets, options)
    return floors
