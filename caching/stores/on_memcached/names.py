"""The names of keys on memcached, and the addresses of its servers."""

from urllib.parse import urlsplit

import xxhash

from caching.errors import LayoutError
from caching.protocol import Layout

PORT_DEFAULT = 11211
NAME_BYTES_MAX = 250
# Letters that memcached's protocol has no other use for.
PRINTABLE = range(0x21, 0x7F)
KEY_LENGTH_BYTES = 4


def addresses(url: str) -> tuple[str, ...]:
    """Return the sorted servers of `memcached://a,b:11212` as host:port; LayoutError."""
    parts = urlsplit(url)
    if parts.scheme != "memcached" or parts.path.strip("/") or parts.query or "@" in parts.netloc:
        raise LayoutError(
            f"'{url}' is not the URL of memcached servers, which is memcached://host:port,host:port"
        )
    found = set()
    for text in parts.netloc.split(","):
        try:
            one = urlsplit(f"//{text}")
            host, port = one.hostname or "localhost", one.port or PORT_DEFAULT
        except ValueError as fault:
            raise LayoutError(f"'{text}' is not a memcached server: {fault}") from fault
        found.add(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return tuple(sorted(found))


def slot_name(layout: Layout, key: str) -> tuple[str, bytes]:
    """Return the name of a key's slot, and what stands before the slot's contents.

    A key that memcached would not take is named by its hash; it then stands before the contents,
    so that another key with this hash is not taken for it.
    """
    return _named(layout.slot_key(key), key, "v", "h")


def stale_name(layout: Layout, key: str) -> str:
    """Return the name of what was last removed from a key's slot; its contents begin alike."""
    return _named(layout.stale_key(key), key, "s", "t")[0]


def _named(name: str, key: str, kind: str, hashed: str) -> tuple[str, bytes]:
    if len(name) <= NAME_BYTES_MAX and all(ord(letter) in PRINTABLE for letter in name):
        return name, b""
    encoded = key.encode()
    prefix = name.removesuffix(f"{kind}:{key}")
    return (
        f"{prefix}{hashed}:{xxhash.xxh128_hexdigest(encoded)}",
        len(encoded).to_bytes(KEY_LENGTH_BYTES, "little") + encoded,
    )
