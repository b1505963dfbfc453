"""Character sets: the collation ids of each, and how their text becomes UTF-8."""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from producers.decoder.values.legacy_charsets import decode_legacy, is_legacy
from producers.decoder.values.wire import copy_text, take, write_long, write_string

# How bytes become UTF-8.
BINARY: Final = 0
UTF8: Final = 1  # copied where it is well-formed
LATIN1: Final = 2
ASCII: Final = 3
LEGACY: Final = 4  # ASCII below 128, tables above
# From here on, bytes below 128 are not always ASCII.
WIDE: Final = 5  # ucs2, utf16, utf16le, utf32: Python's codecs agree with the servers'
SWEDISH: Final = 6  # swe7, by a table
OTHER: Final = 7

# Collation ids of MySQL 8.0-9.7 and MariaDB 10.5-11.4, as information_schema lists them.
# In MariaDB a NOPAD collation has the id of its padded twin + 1024; the UCA 14 ones start at 2048.
_RANGES: Final[list[tuple[str, int, int]]] = [
    ("utf8mb4", 45, 46),
    ("utf8mb4", 224, 247),
    ("utf8mb4", 255, 323),
    ("utf8mb4", 608, 610),
    ("utf8mb4", 1069, 1070),
    ("utf8mb4", 1248, 1270),
    ("utf8mb4", 2304, 2559),
    ("utf8mb3", 33, 33),
    ("utf8mb3", 76, 76),
    ("utf8mb3", 83, 83),
    ("utf8mb3", 192, 215),
    ("utf8mb3", 223, 223),
    ("utf8mb3", 576, 578),
    ("utf8mb3", 1057, 1057),
    ("utf8mb3", 1107, 1107),
    ("utf8mb3", 1216, 1238),
    ("utf8mb3", 2048, 2303),
    ("binary", 63, 63),
    ("latin1", 5, 5),
    ("latin1", 8, 8),
    ("latin1", 15, 15),
    ("latin1", 31, 31),
    ("latin1", 47, 49),
    ("latin1", 94, 94),
    ("latin1", 1032, 1032),
    ("latin1", 1071, 1071),
    ("ascii", 11, 11),
    ("ascii", 65, 65),
    ("ascii", 1035, 1035),
    ("ascii", 1089, 1089),
    ("ucs2", 35, 35),
    ("ucs2", 90, 90),
    ("ucs2", 128, 151),
    ("ucs2", 159, 159),
    ("ucs2", 640, 642),
    ("ucs2", 1059, 1059),
    ("ucs2", 1114, 1114),
    ("ucs2", 1152, 1174),
    ("ucs2", 2560, 2815),
    ("utf16", 54, 55),
    ("utf16", 101, 124),
    ("utf16", 672, 674),
    ("utf16", 1078, 1079),
    ("utf16", 1125, 1147),
    ("utf16", 2816, 3071),
    ("utf16le", 56, 56),
    ("utf16le", 62, 62),
    ("utf16le", 1080, 1080),
    ("utf16le", 1086, 1086),
    ("utf32", 60, 61),
    ("utf32", 160, 183),
    ("utf32", 736, 738),
    ("utf32", 1084, 1085),
    ("utf32", 1184, 1206),
    ("utf32", 3072, 3327),
]

_WIDE_CODECS: Final = {
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
}
_CHAR_BYTES_MAX: Final = {
    "utf8mb4": 4,
    "utf8mb3": 3,
    "ucs2": 2,
    "utf16": 4,
    "utf16le": 4,
    "utf32": 4,
    "big5": 2,
    "cp932": 2,
    "eucjpms": 3,
    "euckr": 2,
    "gb18030": 4,
    "gb2312": 2,
    "gbk": 2,
    "sjis": 2,
    "ujis": 3,
}


# Collation ids of the character sets in legacy_charsets.py, without MariaDB's NOPAD twins.
_LEGACY_IDS: Final = (
    "big5 1 84 cp1250 26 34 44 66 99 cp1251 14 23 50 51 52 cp1256 57 67 cp1257 29 58 59 cp850 4 80 "
    "cp852 40 81 cp866 36 68 cp932 95 96 dec8 3 69 eucjpms 97 98 euckr 19 85 gb18030 248 249 250 "
    "gb2312 24 86 gbk 28 87 geostd8 92 93 greek 25 70 hebrew 16 71 hp8 6 72 keybcs2 37 73 "
    "koi8r 7 74 koi8u 22 75 latin2 2 9 21 27 77 latin5 30 78 latin7 20 41 42 79 macce 38 43 "
    "macroman 39 53 sjis 13 88 swe7 10 82 tis620 18 89 ujis 12 91 armscii8 32 64"
)


def _legacy_names() -> dict[int, str]:
    names: dict[int, str] = {}
    name = ""
    for word in _LEGACY_IDS.split():
        if word.isdigit():
            names[int(word)] = name
        else:
            name = word
    return names


_LEGACY_NAMES: Final = _legacy_names()


def charset_of(collation: int) -> str:
    """Return the name of the character set, `of collation N` for an unknown one."""
    for name, first, last in _RANGES:
        if first <= collation <= last:
            return name
    padded = collation - 1024 if collation > 1024 else collation
    return _LEGACY_NAMES.get(padded, f"of collation {collation}")


def charset_kind(name: str) -> int:
    """Return how text in a character set becomes UTF-8; OTHER where it cannot."""
    if name in ("utf8mb4", "utf8mb3"):
        return UTF8
    if name in _WIDE_CODECS:
        return WIDE
    if name == "swe7":
        return SWEDISH
    if is_legacy(name):
        return LEGACY
    known = {"binary": BINARY, "latin1": LATIN1, "ascii": ASCII}
    return known.get(name, OTHER)


def char_bytes_max(name: str) -> int:
    """Return the most bytes that one character can take."""
    return _CHAR_BYTES_MAX.get(name, 1)


def _latin1_table() -> list[bytes]:
    """MySQL's latin1: cp1252, and C1 controls for the five bytes that cp1252 leaves out."""
    table: list[bytes] = []
    for byte in range(256):
        raw = bytes([byte])
        codec = "latin-1" if byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else "cp1252"
        table.append(raw.decode(codec).encode("utf-8"))
    return table


_LATIN1: Final[list[bytes]] = _latin1_table()


class NotText(ValueError):  # noqa: N818 - the caller names the column and makes the error
    """Raised on bytes that are not text in their character set; the message says why."""


def decode_text(raw: bytes, charset: str) -> str:
    """Return bytes as text; for labels, names and statements, not for rows. ValueError."""
    kind = charset_kind(charset)
    if kind == LATIN1:
        return b"".join([_LATIN1[byte] for byte in raw]).decode("utf-8")
    if kind == WIDE:
        return raw.decode(_WIDE_CODECS[charset])
    if kind == ASCII:
        return raw.decode("ascii")
    if kind in (LEGACY, SWEDISH):
        return decode_legacy(raw, charset)
    return raw.decode("utf-8")


def readable_text(raw: bytes, charset: str) -> str:
    r"""Return bytes as text; those that are not text in their character set become `\xNN`."""
    kind = charset_kind(charset)
    try:
        return decode_text(raw, charset)
    except ValueError:
        if kind in (LEGACY, SWEDISH):
            return decode_legacy(raw, charset, escapes=True)
        codec = _WIDE_CODECS.get(charset, "ascii" if kind == ASCII else "utf-8")
        return raw.decode(codec, "backslashreplace")


def _checked_text(buf: bytes, pos: i64, size: i64, charset: str) -> str:
    """The text of a value. NotText where no reader could decode it."""
    try:
        return decode_text(take(buf, pos, size), charset)
    except UnicodeDecodeError as error:
        raise NotText(f"no {charset}, {error.reason} at byte {error.start}") from error
    except ValueError as error:
        raise NotText(str(error)) from error


def write_text(
    out: BytesWriter, buf: bytes, pos: i64, size: i64, kind: i64, *, charset: str
) -> None:
    """Write text of a character set, and of its kind, as an Avro string. Raises NotText."""
    begin: i64 = len(out)
    if kind < WIDE:
        if size < 64:
            out.append(u8(size << 1))
        else:
            write_long(out, size)
        if copy_text(out, buf, pos, size) or kind == BINARY:
            return
        if kind == UTF8:
            # MariaDB accepts surrogates in its UTF-8.
            _checked_text(buf, pos, size, charset)
            return
        out.truncate(begin)
    if kind == LATIN1:
        text = BytesWriter()
        for i in range(size):
            text.write(_LATIN1[i64(buf[pos + i])])
        write_string(out, text.getvalue())
    else:
        write_string(out, _checked_text(buf, pos, size, charset).encode("utf-8"))
