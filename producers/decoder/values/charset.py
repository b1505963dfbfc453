"""Character sets: the collation ids of each, and how their text becomes UTF-8."""

import re
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from producers.decoder.values.wire import copy_text, take, write_long, write_string

# The codec that is nearest to each character set.
_CODECS: Final = {
    "armscii8": "latin-1",
    "big5": "big5",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "cp932": "cp932",
    "dec8": "latin-1",
    "eucjpms": "euc_jp",
    "euckr": "cp949",
    "gb18030": "gb18030",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "geostd8": "cp1252",
    "greek": "iso8859_7",
    "hebrew": "iso8859_8",
    "hp8": "hp_roman8",
    "keybcs2": "cp437",
    "koi8r": "koi8_r",
    "koi8u": "koi8_u",
    "latin2": "iso8859_2",
    "latin5": "iso8859_9",
    "latin7": "iso8859_13",
    "macce": "mac_latin2",
    "macroman": "mac_roman",
    "sjis": "shift_jis",
    "swe7": "ascii",
    "tis620": "tis_620",
    "ujis": "euc_jp",
}

# How to split bytes into characters, by the bytes that lead two or more.
_SINGLE: Final = re.compile(rb".", re.DOTALL)
_DOUBLE: Final = re.compile(rb"[\x81-\xfe].|.", re.DOTALL)
_SHIFT_JIS: Final = re.compile(rb"[\x81-\x9f\xe0-\xfc].|.", re.DOTALL)
_EUC: Final = re.compile(rb"\x8f..|[\x8e\xa1-\xfe].|.", re.DOTALL)
_GB18030: Final = re.compile(rb"[\x81-\xfe][0-9]..|[\x81-\xfe].|.", re.DOTALL)
_CHARACTERS: Final = {
    "big5": _DOUBLE,
    "euckr": _DOUBLE,
    "gb2312": _DOUBLE,
    "gbk": _DOUBLE,
    "gb18030": _GB18030,
    "cp932": _SHIFT_JIS,
    "sjis": _SHIFT_JIS,
    "ujis": _EUC,
    "eucjpms": _EUC,
}

# Bytes for which the codec has a character and the servers have none.
_UNMAPPED: Final = {
    "big5": "a15a a1c3 a1c5 a1fe a240 a2cc a2ce",
    "cp1256": "8a 8f 98 9a 9f aa c0 ff",
    "cp932": "80 a0 fd fe ff",
    "dec8": "a4 a6 ac ad ae af b4 b8 be d0 de f0 fe ff",
    "geostd8": (
        "81 83 88 8a 8c 8d 8e 8f 90 98 99 9a 9c 9d 9e 9f e6 e7 e8 e9 ea eb "
        "ec ed ee ef f0 f1 f2 f3 f4 f5 f6 f7 f8 f9 fa fb fc fe ff"
    ),
    "greek": "a4 a5 aa",
    "swe7": "7f",
}
_NO_CHARACTER: Final = "\ufffd"
# Rows that EUC-JP leaves undefined: the servers put the private use area there, and eucjpms also
# what CP932 has under the lead byte 0x87.
_PRIVATE: Final = "".join([chr(0xE000 + i) for i in range(940)])
_PRIVATE_MORE: Final = "".join([chr(0xE3AC + i) for i in range(940)])
_NEC_ROW_13: Final = "".join(
    [bytes([0x87, 0x40 + i + (i >= 63)]).decode("cp932", "replace")[:1] for i in range(94)]
)
# Characters that the servers decode in another way than the codec: the first code, then a run.
_CHANGED: Final = {
    "armscii8": {
        "a1": (
            "\u2741\xa7\u0589)(\xbb\xab\u2014.\u055d,-\u055f\u2026\u055c\u055b\u055e\u0531"
            "\u0561\u0532\u0562\u0533\u0563\u0534\u0564\u0535\u0565\u0536\u0566\u0537\u0567"
            "\u0538\u0568\u0539\u0569\u053a\u056a\u053b\u056b\u053c\u056c\u053d\u056d\u053e"
            "\u056e\u053f\u056f\u0540\u0570\u0541\u0571\u0542\u0572\u0543\u0573\u0544\u0574"
            "\u0545\u0575\u0546\u0576\u0547\u0577\u0548\u0578\u0549\u0579\u054a\u057a\u054b"
            "\u057b\u054c\u057c\u054d\u057d\u054e\u057e\u054f\u057f\u0550\u0580\u0551\u0581"
            "\u0552\u0582\u0553\u0583\u0554\u0584\u0555\u0585\u0556\u0586\u2019'"
        ),
    },
    "big5": {"f9d6": "\u7881\u92b9\u88cf\u58bb\u6052\u7ca7\u5afa"},
    "cp866": {"fc": "\u207f\xb2"},
    "dec8": {"a8": "\xa4", "d7": "\u0152", "dd": "\u0178", "f7": "\u0153", "fd": "\xff"},
    "eucjpms": {
        "a1c1": "\uff5e\u2225",
        "a1dd": "\uff0d",
        "a1f1": "\uffe0\uffe1",
        "a2cc": "\uffe2",
        "8fa2b7": "\uff5e",
        "ada1": _NEC_ROW_13,
        "f5a1": _PRIVATE,
        "8ff3f3": (
            "\u2170\u2171\u2172\u2173\u2174\u2175\u2176\u2177\u2178\u2179\u2160\u2161\u2162"
            "\u2163\u2164\u2165\u2166\u2167\u2168\u2169\uff07\uff02\u3231\u2116\u2121\u70bb"
            "\u4efc\u50f4\u51ec\u5307\u5324\ufa0e\u548a\u5759\ufa0f\ufa10\u589e\u5bec\u5cf5"
            "\u5d53\ufa11\u5fb7\u6085\u6120\u654e\u663b\u6665\ufa12\uf929\u6801\ufa13\ufa14"
            "\u6a6b\u6ae2\u6df8\u6df2\u7028\ufa15\ufa16\u7501\u7682\u769e\ufa17\u7930\ufa18"
            "\ufa19\ufa1a\ufa1b\u7ae7\ufa1c\ufa1d\u7da0\u7dd6\ufa1e\u8362\ufa1f\u85b0\ufa20"
            "\ufa21\u8807\ufa22\u8b7f\u8cf4\u8d76\ufa23\ufa24\ufa25\u90de\ufa26\u9115\ufa27"
            "\ufa28\u9592\uf9dc\ufa29\u973b\u974d\u9751\ufa2a\ufa2b\ufa2c\u999e\u9ad9\u9b72"
            "\ufa2d\u9ed1"
        ),
        "8ff5a1": _PRIVATE_MORE,
        "8fa2c3": "\uffe4",
    },
    "geostd8": {
        "c0": (
            "\u10d0\u10d1\u10d2\u10d3\u10d4\u10d5\u10d6\u10f1\u10d7\u10d8\u10d9\u10da\u10db"
            "\u10dc\u10f2\u10dd\u10de\u10df\u10e0\u10e1\u10e2\u10f3\u10e3\u10e4\u10e5\u10e6"
            "\u10e7\u10e8\u10e9\u10ea\u10eb\u10ec\u10ed\u10ee\u10f4\u10ef\u10f0\u10f5"
        ),
        "fd": "\u2116",
    },
    "gb18030": {"a8bc": "\u1e3f", "8135f437": "\ue7c7"},
    "greek": {"a1": "\u02bd\u02bc"},
    "hebrew": {"af": "\u203e"},
    "keybcs2": {
        "80": (
            "\u010c\xfc\xe9\u010f\xe4\u010e\u0164\u010d\u011b\u011a\u0139\xcd\u013e\u013a\xc4"
            "\xc1\xc9\u017e\u017d\xf4\xf6\xd3\u016f\xda\xfd\xd6\xdc\u0160\u013d\xdd\u0158\u0165"
            "\xe1\xed\xf3\xfa\u0148\u0147\u016e\xd4\u0161\u0159\u0155\u0154\xbc\xa1\xab\xbb"
        ),
    },
    "koi8u": {"95": "\u2022"},
    "sjis": {"815f": "\\"},
    "swe7": {"40": "\xc9", "5b": "\xc4\xd6\xc5\xdc", "60": "\xe9", "7b": "\xe4\xf6\xe5\xfc"},
    "ujis": {"a1c0": "\\", "f5a1": _PRIVATE, "8ff5a1": _PRIVATE_MORE},
}

_EUC_FIRST: Final = 0xA1
_EUC_LAST: Final = 0xFE
_LEADS_MIN: Final = 0x81


class UnmappedText(ValueError):  # noqa: N818 - the caller names the column and makes the error
    """Raised on bytes for which their character set has no character; the message names both."""


def is_legacy(charset: str) -> bool:
    """Tell whether a character set is decoded here."""
    return charset in _CODECS


def decode_legacy(raw: bytes, charset: str, *, escapes: bool = False) -> str:
    r"""Return bytes in such a character set as text. Raises UnmappedText, unless `escapes`.

    `escapes`: bytes without a character become `\xNN`.
    """
    table = _table(charset)
    pieces: list[str] = []
    for code in _CHARACTERS.get(charset, _SINGLE).findall(raw):
        text = table.get(code)
        if text is None:
            text = _beyond_table(code, charset, escapes)
        pieces.append(text)
    return "".join(pieces)


def _beyond_table(code: bytes, charset: str, escapes: bool) -> str:
    """Decode the four-byte codes of gb18030, which are too many for a table."""
    if len(code) == 4:
        try:
            return code.decode(_CODECS[charset])
        except UnicodeDecodeError:
            pass
    if escapes:
        return code.decode("ascii", "backslashreplace")
    raise UnmappedText(f"the bytes 0x{code.hex()} are not a character of {charset}")


_TABLES: Final[dict[str, dict[bytes, str]]] = {}


def _table(charset: str) -> dict[bytes, str]:
    """Return all codes of a character set, computed on first use (20 ms for the large ones)."""
    table = _TABLES.get(charset)
    if table is None:
        table = _TABLES[charset] = _make_table(charset)
    return table


def _make_table(charset: str) -> dict[bytes, str]:
    characters = _CHARACTERS.get(charset, _SINGLE)
    codes = [bytes([byte]) for byte in range(256)]
    if characters is not _SINGLE:
        codes += [bytes([lead, byte]) for lead in range(_LEADS_MIN, 256) for byte in range(256)]
    if characters is _EUC:
        euc = range(_EUC_FIRST, _EUC_LAST + 1)
        codes += [bytes([0x8F, row, cell]) for row in euc for cell in euc]
    table: dict[bytes, str] = {}
    for code in codes:
        try:
            text = code.decode(_CODECS[charset])
        except UnicodeDecodeError:
            continue
        if characters.fullmatch(code):
            table[code] = text
    for first, run in _CHANGED.get(charset, {}).items():
        code = bytes.fromhex(first)
        for character in run:
            if character != _NO_CHARACTER:
                table[code] = character
            code = _next_code(code)
    for unmapped in _UNMAPPED.get(charset, "").split():
        table.pop(bytes.fromhex(unmapped), None)
    return table


def _next_code(code: bytes) -> bytes:
    """Return the next code; a row of EUC goes from 0xA1 to 0xFE."""
    last = code[-1]
    if len(code) > 1 and last == _EUC_LAST:
        return code[:-2] + bytes([code[-2] + 1, _EUC_FIRST])
    return code[:-1] + bytes([last + 1 & 0xFF])


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
_COLLATIONS: Final = (
    "utf8mb4 45-46 224-247 255-323 608-610 1069-1070 1248-1270 2304-2559 utf8mb3 33 76 83 "
    "192-215 223 576-578 1057 1107 1216-1238 2048-2303 binary 63 latin1 5 8 15 31 47-49 94 1032 "
    "1071 ascii 11 65 1035 1089 ucs2 35 90 128-151 159 640-642 1059 1114 1152-1174 2560-2815 "
    "utf16 54-55 101-124 672-674 1078-1079 1125-1147 2816-3071 utf16le 56 62 1080 1086 utf32 "
    "60-61 160-183 736-738 1084-1085 1184-1206 3072-3327"
)

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


def _names(listed: str) -> dict[int, str]:
    """Return the character set of each collation id: the last name before it."""
    names: dict[int, str] = {}
    name = ""
    for word in listed.split():
        first, _, last = word.partition("-")
        if first.isdigit():
            for collation in range(int(first), int(last or first) + 1):
                names[collation] = name
        else:
            name = word
    return names


_NAMES: Final = _names(_COLLATIONS)
_LEGACY_NAMES: Final = _names(_LEGACY_IDS)


def charset_of(collation: int) -> str:
    """Return the name of the character set, `of collation N` for an unknown one."""
    padded = collation - 1024 if collation > 1024 else collation
    name = _NAMES.get(collation) or _LEGACY_NAMES.get(padded)
    return name or f"of collation {collation}"


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
