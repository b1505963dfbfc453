"""The messages of a change, made value by value of Python objects.

Slow, and shares no code with the encoder: JSON is written character by character, Avro by fastavro.
"""

import io
import json
import struct
from base64 import b64encode
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa

from sinks.table_topics.envelope.bodies import (
    DEBEZIUM_VERSION,
    RowSchema,
    envelope_schema,
    flat_schema,
)
from sinks.table_topics.envelope.connect_types import (
    DECIMAL,
    ConnectSchema,
    avro_name,
    avro_schema,
    json_schema,
)
from sinks.table_topics.options import EnvelopeOptions
from topics.records.table_shape import Column, TableShape, ValueKind, plain_schema, wire_header
from topics.records.vevent import InvalidDate, Op, Row, VEvent

KEY_ID = 1
VALUE_ID = 2
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a DATETIME has no zone
US = timedelta(microseconds=1)
DAY = timedelta(days=1)
LETTERS = {Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d", Op.READ: "r"}


# In the place of a value that the format has no form for: an error only where it is written.
NO_FORM = object()


class NoFormError(Exception):
    """The format has no form for a value."""


@dataclass(frozen=True, slots=True)
class SlowMessage:
    """A message; `header`: its only one, if it has one."""

    key: bytes
    value: bytes | None
    header: tuple[str, bytes] | None = None


@dataclass(frozen=True, slots=True)
class SlowEncoder:
    """Makes the messages of a table version whose last column may be the keyspace id."""

    shape: TableShape
    options: EnvelopeOptions
    has_home: bool

    def messages(
        self, event: VEvent, op: Op, processed_us: int, *, old_half: bool, new_half: bool
    ) -> list[SlowMessage]:
        """Return the messages of a change that a reader sees as `op`; NoFormError."""
        before = None if op in {Op.INSERT, Op.READ} else self._row(event, event.before, is_old=True)
        after = None if op is Op.DELETE else self._row(event, event.after, is_old=False)
        old = None if before is None else self._key(before)
        new = None if after is None else self._key(after)
        found = []
        if after is None or (before is not None and old != new):
            header = None if after is None else ("__debezium.newkey", self._header(after))
            if old_half:
                assert old is not None
                value = self._value(event, "d", before, None, processed_us)
                found.append(SlowMessage(old, value, header))
                if self.options.tombstones:
                    found.append(SlowMessage(old, None, header))
            if after is not None and new_half:
                assert new is not None
                assert before is not None
                header = "__debezium.oldkey", self._header(before)
                value = self._value(event, "c", None, after, processed_us)
                found.append(SlowMessage(new, value, header))
        elif new_half:
            assert new is not None
            value = self._value(event, LETTERS[op], before, after, processed_us)
            found.append(SlowMessage(new, value))
        return found

    def _row(self, event: VEvent, row: Row | None, *, is_old: bool) -> dict[str, Any]:
        assert row is not None
        fields = RowSchema.of(self.shape, self.options).fields
        values: dict[str, Any] = dict(row)
        if self.has_home:
            home = event.keyspace_id_before if is_old else event.keyspace_id_after
            assert home is not None
            values[self.shape.columns[-1].name] = home.hex()
        return {
            column.name: connect_value(column, field.schema, values[column.name])
            for column, field in zip(self.shape.columns, fields, strict=True)
        }

    def _key_row(self, row: dict[str, Any]) -> dict[str, Any]:
        names = [self.shape.columns[i].name for i in self.shape.primary_key]
        if any(row[name] is None for name in names):
            raise NoFormError
        return {name: row[name] for name in names}

    def _key(self, row: dict[str, Any]) -> bytes:
        return self._encoded(RowSchema.of(self.shape, self.options).key, self._key_row(row), KEY_ID)

    def _header(self, row: dict[str, Any]) -> bytes:
        key = RowSchema.of(self.shape, self.options).key
        return json_text(key, self._key_row(row), is_header=True).encode()

    def _encoded(self, schema: ConnectSchema, value: dict[str, Any], schema_id: int) -> bytes:
        if self.options.format.is_avro:
            avro = fastavro.parse_schema(plain_schema(avro_schema(schema)))
            stream = io.BytesIO()
            fastavro.schemaless_writer(stream, avro, _avro_names(value))
            return wire_header(schema_id) + stream.getvalue()
        text = json_text(schema, value)
        if self.options.schemas:
            of = json.dumps(json_schema(schema), ensure_ascii=False, separators=(",", ":"))
            text = f'{{"schema":{of},"payload":{text}}}'
        return text.encode()

    def _value(
        self,
        event: VEvent,
        letter: str,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
        processed_us: int,
    ) -> bytes:
        row_schema = RowSchema.of(self.shape, self.options)
        token = event.token_text
        time_us = token.timestamp_us
        place = {"shard": token.shard, "token": token.token.to_string()}
        if self.options.format.is_flat:
            row = {
                **((before if letter == "d" else after) or {}),
                "__deleted": "true" if letter == "d" else "false",
                "__op": letter,
                "__source_ts_ms": time_us // 1000,
                "_time_us": time_us,
                "_shard": token.shard,
                "_seq": event.seq,
                "_token": place["token"],
            }
            return self._encoded(flat_schema(row_schema), row, VALUE_ID)
        source = {
            "version": DEBEZIUM_VERSION,
            "connector": "mysql" if ":" in token.position else "mariadb",
            "name": self.options.prefix,
            "ts_ms": time_us // 1000,
            "snapshot": "incremental" if letter == "r" else "false",
            "db": event.database,
            "sequence": f'[{java_string(token.shard)},"{event.seq}"]',
            "ts_us": time_us,
            "ts_ns": time_us * 1000,
            "table": event.table,
            "server_id": 0,
            "gtid": event.gtid or None,
            "file": f"shardstream.{time_us}",
            "pos": event.seq,
            "row": 0,
            "thread": None,
            "query": None,
            **place,
            "keyspace": self.options.keyspace,
        }
        envelope = {
            "before": before,
            "after": after,
            "source": source,
            "transaction": None,
            "op": letter,
            "ts_ms": processed_us // 1000,
            "ts_us": processed_us,
            "ts_ns": processed_us * 1000,
        }
        return self._encoded(envelope_schema(row_schema), envelope, VALUE_ID)


def _avro_names(value: Any) -> Any:
    if value is NO_FORM:
        raise NoFormError
    if isinstance(value, dict):
        return {avro_name(name): _avro_names(each) for name, each in value.items()}
    return value


def connect_value(column: Column, to: ConnectSchema, value: Any) -> Any:
    """A value as Connect has it."""
    if value is None or isinstance(value, InvalidDate):
        return None
    match column.kind:
        case ValueKind.UNSIGNED_LONG | ValueKind.DECIMAL:
            return _decimal(column, to, value)
        case ValueKind.SET:
            return ",".join(value)
        case ValueKind.BIT | ValueKind.BIT64:
            bits = int(column.sql_type[4:-1])
            return value != 0 if bits == 1 else value.to_bytes(8, "little")[: (bits + 7) // 8]
        case ValueKind.DATE:
            return f"{value.isoformat()}Z" if to.type == "string" else (value - EPOCH.date()).days
        case ValueKind.TIME:
            return _time(to, value)
        case ValueKind.DATETIME | ValueKind.TIMESTAMP:
            return _moment(column, to, value)
        case ValueKind.BYTES if to.type == "array":
            return [each for (each,) in struct.iter_unpack("<f", value)]
        case ValueKind.BYTES if to.type == "struct":
            srid, wkb = int.from_bytes(value[:4], "little", signed=True) or None, value[4:]
            if to.fields[0].name == "wkb":
                return {"wkb": wkb, "srid": srid}
            x, y = struct.unpack("<2d", value[9:])
            return {"x": x, "y": y, "wkb": wkb, "srid": srid}
        case _:
            return value


def _decimal(column: Column, to: ConnectSchema, value: int | Decimal) -> Any:
    if to.type == "int64":
        return value if value < 2**63 else NO_FORM
    if to.type == "string":
        return f"{value:f}"
    if to.type == "double":
        return float(value)
    unscaled = int(f"{Decimal(value):f}".replace(".", ""))
    size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    return unscaled.to_bytes(size, "big", signed=True)


def _time(to: ConnectSchema, value: timedelta) -> Any:
    if to.type == "int64":
        return value // US
    if not timedelta() <= value < DAY:
        return None
    if to.type == "int32":
        return value // timedelta(milliseconds=1)
    return f"{_short((EPOCH + value).time().isoformat())}Z"


def _moment(column: Column, to: ConnectSchema, value: datetime) -> Any:
    plain = value.replace(tzinfo=None)
    if to.type == "int64":
        unit = US if (to.name or "").endswith("MicroTimestamp") else timedelta(milliseconds=1)
        return (plain - EPOCH) // unit
    text = plain.isoformat(timespec="microseconds")
    if column.kind is ValueKind.DATETIME:
        return f"{_short(text)}Z"
    digits = fraction_digits(column)
    return f"{text[: 20 + digits] if digits else text[:19]}Z"


def _short(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def fraction_digits(column: Column) -> int:
    """The digits of `datetime(3)`."""
    return int(column.sql_type[-2]) if column.sql_type.endswith(")") else 0


def json_text(schema: ConnectSchema, value: Any, *, is_header: bool = False) -> str:
    """What Connect's JsonConverter writes, or its SimpleHeaderConverter; NoFormError."""
    if value is NO_FORM:
        raise NoFormError
    if value is None:
        return "null"
    if is_header and schema.name == DECIMAL:
        unscaled = int.from_bytes(value, "big", signed=True)
        return f"{Decimal(unscaled).scaleb(-int(dict(schema.parameters)['scale'])):f}"
    match schema.type:
        case "string":
            return java_string(value)
        case "bytes":
            return f'"{b64encode(value).decode()}"'
        case "boolean":
            return "true" if value else "false"
        case "float" | "double":
            of = pa.float32() if schema.type == "float" else pa.float64()
            return str(pa.array([value], of).cast(pa.string())[0])
        case "array":
            items = (json_text(schema.items or schema, each) for each in value)
            return f"[{','.join(items)}]"
        case "struct":
            fields = (
                f"{json.dumps(f.name, ensure_ascii=False)}:"
                f"{json_text(f.schema, value[f.name], is_header=is_header)}"
                for f in schema.fields
            )
            return f"{{{','.join(fields)}}}"
        case _:
            return str(value)


_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"} | {
    "\b": "\\b",
    "\f": "\\f",
}


def java_string(text: str) -> str:
    """A JSON string as Jackson writes it."""
    return f'"{"".join(map(_java_character, text))}"'


def _java_character(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    if character >= " " and ord(character) < 0x10000:
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex().upper()}" for i in range(0, len(units), 2))
