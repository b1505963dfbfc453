"""The partition of a key as Java's producers choose it."""

_FACTOR = 0x5BD1E995
_WORD = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Kafka's murmur2, as an unsigned 32-bit number."""
    found = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for i in range(0, whole, 4):
        word = int.from_bytes(key[i : i + 4], "little") * _FACTOR & _WORD
        word = (word ^ word >> 24) * _FACTOR & _WORD
        found = found * _FACTOR & _WORD ^ word
    if rest := key[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * _FACTOR & _WORD
    found = (found ^ found >> 13) * _FACTOR & _WORD
    return found ^ found >> 15


def java_partition(key: bytes, partitions: int) -> int:
    """The positive hash modulo the number of partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
