"""Writes the messages of one table version from the bytes of its records. Typed for mypyc."""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from sinks.errors import PartialRow, ValueDoesNotFit
from sinks.table_topics.envelope.value_writers import (
    NULL_BRANCH,
    SECOND_BRANCH,
    ValueWriter,
    java_string,
    write_avro_bytes,
    write_java_string,
    write_varint,
)
from topics.arrow.columns.arrow_values import ValueReader
from topics.arrow.columns.envelope_columns import opaque_token, write_absent
from topics.arrow.columns.images import KeyColumns, whole_image
from topics.arrow.columns.json_values import write_number
from topics.errors import CannotApply
from topics.records.cursor import Cursor
from topics.records.envelope import NULL, EnvelopeReader
from topics.records.envelope_table import OPS

NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"
_LETTERS: Final = {"INSERT": "c", "UPDATE": "u", "DELETE": "d", "READ": "r"}
_NO_IMAGE: Final = -1


class WrittenMessages:
    """Messages in order: the number of the row that each is of, key, value, headers.

    `values`: None is a tombstone. `headers`: of the few messages that have any, by index.
    """

    def __init__(self) -> None:
        """Begin without messages."""
        self.rows: list[int] = []
        self.keys: list[bytes] = []
        self.values: list[bytes | None] = []
        self.headers: dict[int, tuple[str, bytes]] = {}


class StructWriter:
    """Writes columns of row images as a struct.

    A struct of a key has its required columns; one of a row all of them, each with a union's branch
    in Avro.
    """

    def __init__(
        self,
        names: list[bytes],
        values: list[ValueWriter],
        *,
        is_avro: bool,
        is_key: bool,
        end: bytes,
    ) -> None:
        """`names`: what stands before each value, one more where rows have a keyspace id.

        `end`: what stands behind the last value.
        """
        self.names: list[bytes] = names
        self.values: list[ValueWriter] = values
        self.has_home: bool = len(names) > len(values)
        self.is_avro: bool = is_avro
        self.branch: bytes = SECOND_BRANCH if is_avro and not is_key else b""
        self.null: bytes = NULL_BRANCH if is_avro else b"null"
        self.end: bytes = end

    def write_row(self, cursor: Cursor, out: BytesWriter, home: bytes) -> None:
        """Read a whole image and write it."""
        names = self.names
        branch = self.branch
        column: i64 = 0
        for value in self.values:
            out.write(names[column])
            column += 1
            if not cursor.take_present():
                out.write(self.null)
                continue
            begin: i64 = len(out)
            out.write(branch)
            if not value.write(cursor, out):
                out.truncate(begin)
                out.write(self.null)
        self.write_end(out, home)

    def write_end(self, out: BytesWriter, home: bytes) -> None:
        """Write the keyspace id, where rows have it, and the end."""
        if self.has_home:
            out.write(self.names[len(self.values)])
            out.write(self.branch)
            if self.is_avro:
                write_avro_bytes(out, home)
            else:
                write_java_string(out, home, 0, len(home))
        out.write(self.end)


class KeyWriter:
    """Writes the primary key of row images."""

    def __init__(
        self,
        skippers: list[ValueReader],
        columns: list[int],
        struct: StructWriter,
        names: list[str],
    ) -> None:
        """Take a skipper per column of the version, and the key's columns.

        `names`: of the key's columns, for messages.
        """
        self.places: KeyColumns = KeyColumns(skippers, columns, [])
        self.columns: list[int] = columns
        self.struct: StructWriter = struct
        self.names: list[str] = names
        self.cursor: Cursor = Cursor()

    def write(self, record: bytes, at: i64, out: BytesWriter, home: bytes) -> None:
        """Write the key of the image at byte `at` of a record.

        ValueDoesNotFit on a value that would be null.
        """
        places = self.places
        places.find(record, at)
        struct = self.struct
        cursor = self.cursor
        number: i64 = 0
        for column in self.columns:
            out.write(struct.names[number])
            place = places.places[column]
            if place < 0:
                out.write(struct.null)
            else:
                cursor.open(record, place)
                if not struct.values[number].write(cursor, out):
                    raise ValueDoesNotFit(
                        f"{self.names[number]}: a TIME that is not a time of day would be null in "
                        f"a key: write such columns with --time adaptive, or leave the table out"
                    )
            number += 1  # noqa: SIM113 - enumerate() would not count in native integers
        struct.write_end(out, home)


class Template:
    """What is the same in all values of a table version.

    `head`: before the first image, `middle`: between the two (empty if the value is flat), `image`:
    before an image that is not null. `gaps`: before each field that differs by row, and behind the
    last one.
    """

    def __init__(
        self, *, is_avro: bool, is_flat: bool, head: bytes, middle: bytes, image: bytes
    ) -> None:
        """Take the parts; `gaps` are set later."""
        self.is_avro: bool = is_avro
        self.is_flat: bool = is_flat
        self.head: bytes = head
        self.middle: bytes = middle
        self.image: bytes = image
        self.gaps: list[bytes] = []

    def write_text(self, out: BytesWriter, gap: int, text: bytes) -> None:
        """Write a gap and the text behind it."""
        out.write(self.gaps[gap])
        if self.is_avro:
            write_avro_bytes(out, text)
        else:
            write_java_string(out, text, 0, len(text))

    def write_number(self, out: BytesWriter, gap: int, number: i64) -> None:
        """Write a gap and the number behind it."""
        out.write(self.gaps[gap])
        self.write_long(out, number)

    def write_long(self, out: BytesWriter, number: i64) -> None:
        """Write a number."""
        if self.is_avro:
            write_varint(out, number)
        else:
            write_number(out, number)

    def write_optional(self, out: BytesWriter, gap: int, text: bytes) -> None:
        """Write a gap and the text behind it, null if it is empty."""
        if text:
            self.write_text(out, gap, text)
        elif self.is_avro:
            # Null is another branch than the one that ends the gap.
            out.write(self.gaps[gap][:-1])
            out.write(NULL_BRANCH)
        else:
            out.write(self.gaps[gap])
            out.write(b"null")


class MessageEnd:
    """What follows the images, around the seqs: the same for all rows of a transaction."""

    def __init__(self, first: bytes, second: bytes, third: bytes) -> None:
        """Take the parts."""
        self.first: bytes = first
        self.second: bytes = second
        self.third: bytes = third


class MessageWriter:
    """Writes the messages of records. It cannot be used after an error."""

    def __init__(
        self,
        *,
        table: str,
        column_names: list[str],
        skippers: list[ValueReader],
        template: Template,
        row: StructWriter,
        key: KeyWriter,
        header_key: KeyWriter,
        key_head: bytes,
        key_end: bytes,
        tombstones: bool,
        token_version: int,
    ) -> None:
        """`key_head`, `key_end`: what stands around a key."""
        self.table: str = table
        self.column_names: list[str] = column_names
        self.whole: bytes = whole_image(len(column_names))
        self.skippers: list[ValueReader] = skippers
        self.template: Template = template
        self.row: StructWriter = row
        self.key: KeyWriter = key
        self.header_key: KeyWriter = header_key
        self.key_head: bytes = key_head
        self.key_end: bytes = key_end
        self.tombstones: bool = tombstones
        self.token_version: i64 = token_version
        self.envelope: EnvelopeReader = EnvelopeReader()
        self.image: Cursor = Cursor()
        self.processed_us: i64 = 0
        self._token_number: i64 = -1
        self._token: bytes = b""
        self._gtid: bytes = b""
        self._sequence: bytes = b""  # up to the seq, in Avro
        self._tails: dict[str, MessageEnd] = {}  # of the transaction at hand, by op

    def begin(self, processed_us: int) -> None:
        """Begin a batch that is processed at a time."""
        self.processed_us = processed_us
        self._token_number = -1

    def write(
        self,
        records: list[bytes],
        envelope_version: int,
        ops: list[str],
        old_half: bytes,
        new_half: bytes,
        into: WrittenMessages,
    ) -> None:
        """Write the messages of records.

        `ops`: as a reader sees the changes, which may hide an image; empty: as the records have
        them. `old_half`, `new_half`: per record, whether messages are wanted that end a key, and
        others; empty: all.

        IndexError, OverflowError, ValueError: a record's bytes are broken. PartialRow: an image
        lacks columns. ValueDoesNotFit: the format cannot represent a value. CannotApply: a row
        lacks the keyspace id that is a part of its key.
        """
        version: i64 = envelope_version
        number: i64 = 0
        for record in records:
            self._open(record, version)
            own = OPS[self.envelope.op]
            op = ops[number] if ops else own
            self._write_record(
                record,
                int(number),
                op,
                is_cut=op != own,
                is_old_wanted=not old_half or old_half[number] != 0,
                is_new_wanted=not new_half or new_half[number] != 0,
                into=into,
            )
            number += 1  # noqa: SIM113 - as above

    def _open(self, record: bytes, version: i64) -> None:
        """Read an envelope, and note what is the same within a transaction."""
        envelope = self.envelope
        envelope.read(record, version)
        gtid = envelope.bytes_at(envelope.gtid_at)
        if envelope.token_number != self._token_number or gtid != self._gtid:
            if envelope.token_number != self._token_number:
                self._token = opaque_token(envelope, self.token_version)
                self._sequence = b"[" + java_string(envelope.shard) + b',"'
            self._token_number = envelope.token_number
            self._gtid = gtid
            self._tails = {}
        before, after, whole = envelope.columns_before, envelope.columns_after, self.whole
        if (before and before != whole) or (after and after != whole):
            raise self._partial(before, after)

    def _partial(self, before: bytes, after: bytes) -> PartialRow:
        out = BytesWriter()
        out.write(b'{"before":')
        write_absent(out, self.column_names, before)
        out.write(b',"after":')
        write_absent(out, self.column_names, after)
        out.write(b"}")
        return PartialRow(
            f"{self.place()} (GTID {self._gtid.decode('utf-8')}): a row of {self.table} lacks "
            f"columns ({out.getvalue().decode('utf-8')}), and a message has the whole row: set "
            f"binlog_row_image=FULL on the server, copy the table again, and begin new topics "
            f"behind it (another --prefix and checkpoint, --from copy), or leave the table out"
        )

    def place(self) -> str:
        """Return the place of the record at hand."""
        envelope = self.envelope
        return f"shard {envelope.shard.decode('utf-8', 'replace')}, seq {envelope.seq}"

    def _write_record(
        self,
        record: bytes,
        number: int,
        op: str,
        *,
        is_cut: bool,
        is_old_wanted: bool,
        is_new_wanted: bool,
        into: WrittenMessages,
    ) -> None:
        cursor = self.envelope.cursor
        before: i64 = _NO_IMAGE
        after: i64 = _NO_IMAGE
        if cursor.take_present():
            before = cursor.at
            for skipper in self.skippers:
                if cursor.take_present():
                    skipper.take(cursor)
        if cursor.take_present():
            after = cursor.at
        elif cursor.at != cursor.end:
            raise ValueError("bytes are left after its last field")
        if is_cut and op == "INSERT":
            before = _NO_IMAGE
        if is_cut and op == "DELETE":
            after = _NO_IMAGE
        old_key = b""
        new_key = b""
        if before >= 0:
            old_key = self._key_of(record, before, is_old=True)
        if after >= 0:
            new_key = self._key_of(record, after, is_old=False)
        if op == "DELETE":
            if is_old_wanted:
                self._end_key(number, old_key, record, before, into)
        elif before >= 0 and old_key != new_key:
            self._move_key(
                number,
                old_key,
                new_key,
                record,
                before,
                after,
                is_old_wanted=is_old_wanted,
                is_new_wanted=is_new_wanted,
                into=into,
            )
        elif is_new_wanted:
            into.rows.append(number)
            into.keys.append(new_key)
            into.values.append(self._value(record, _LETTERS[op], before, after))

    def _end_key(
        self, number: int, key: bytes, record: bytes, before: i64, into: WrittenMessages
    ) -> None:
        into.rows.append(number)
        into.keys.append(key)
        into.values.append(self._value(record, "d", before, _NO_IMAGE))
        if self.tombstones:
            into.rows.append(number)
            into.keys.append(key)
            into.values.append(None)

    def _move_key(
        self,
        number: int,
        old_key: bytes,
        new_key: bytes,
        record: bytes,
        before: i64,
        after: i64,
        *,
        is_old_wanted: bool,
        is_new_wanted: bool,
        into: WrittenMessages,
    ) -> None:
        """Write a changed key: `d` has no row after the change, and `c` none before it."""
        if is_old_wanted:
            first = len(into.keys)
            self._end_key(number, old_key, record, before, into)
            text = self._header(record, after, is_old=False)
            for i in range(first, len(into.keys)):
                into.headers[i] = (NEW_KEY, text)
        if is_new_wanted:
            into.headers[len(into.keys)] = (OLD_KEY, self._header(record, before, is_old=True))
            into.rows.append(number)
            into.keys.append(new_key)
            into.values.append(self._value(record, "c", _NO_IMAGE, after))

    def _key_of(self, record: bytes, at: i64, *, is_old: bool) -> bytes:
        out = BytesWriter()
        out.write(self.key_head)
        self.key.write(record, at, out, self._home(is_old=is_old))
        out.write(self.key_end)
        return out.getvalue()

    def _header(self, record: bytes, at: i64, *, is_old: bool) -> bytes:
        out = BytesWriter()
        self.header_key.write(record, at, out, self._home(is_old=is_old))
        return out.getvalue()

    def _home(self, *, is_old: bool) -> bytes:
        """Return the keyspace id, as rows have it where it is a part of their key."""
        if not self.row.has_home:
            return b""
        envelope = self.envelope
        at = envelope.keyspace_id_before_at if is_old else envelope.keyspace_id_after_at
        if at == NULL:
            raise CannotApply(
                f"{self.table}, {self.place()}: the row has no keyspace id, which --key-scope "
                f"shard makes a part of the key: its table had no vindex, or its image lacks the "
                f"sharding column. Leave the table out (name the others with --table), or give it "
                f"a vindex in the settings of the keyspace and start a new target from a copy "
                f"taken after that"
            )
        return envelope.bytes_at(at).hex().encode("ascii")

    def _value(self, record: bytes, letter: str, before: i64, after: i64) -> bytes:
        """Return a value; the images are at bytes `before` and `after` of the record."""
        template = self.template
        out = BytesWriter()
        out.write(template.head)
        if template.is_flat:
            # A deleted row is its last image.
            self._write_image(out, record, before if letter == "d" else after, is_old=letter == "d")
        else:
            self._write_image(out, record, before, is_old=True)
            out.write(template.middle)
            self._write_image(out, record, after, is_old=False)
        tail = self._tails.get(letter)
        if tail is None:
            tail = self._flat_tail(letter) if template.is_flat else self._tail(letter)
            self._tails[letter] = tail
        out.write(tail.first)
        seq = self.envelope.seq
        if not template.is_flat:
            if template.is_avro:
                text = str(int(seq)).encode("ascii")
                write_varint(out, len(self._sequence) + len(text) + 2)
                out.write(self._sequence)
                out.write(text)
                out.write(b'"]')
            else:
                write_number(out, seq)
            out.write(tail.second)
        template.write_long(out, seq)
        out.write(tail.third)
        return out.getvalue()

    def _write_image(self, out: BytesWriter, record: bytes, at: i64, *, is_old: bool) -> None:
        if at < 0:
            out.write(self.row.null)
            return
        out.write(self.template.image)
        image = self.image
        image.open(record, at)
        self.row.write_row(image, out, self._home(is_old=is_old))
        # The image before the change is followed by the one after it.
        if not is_old:
            image.check_end()

    def _tail(self, letter: str) -> MessageEnd:
        """Return what an envelope has behind the images."""
        template, envelope, gaps = self.template, self.envelope, self.template.gaps
        time_us = envelope.timestamp_us
        first = BytesWriter()
        family = b"mysql" if b":" in envelope.position() else b"mariadb"
        template.write_text(first, 0, family)
        template.write_number(first, 1, time_us // 1000)
        template.write_text(first, 2, b"incremental" if letter == "r" else b"false")
        first.write(gaps[3])
        second = BytesWriter()
        if not template.is_avro:
            # The sequence is JSON in a string: `"[\"-80\",\"7\"]"`.
            first.write(java_string(self._sequence)[:-1])
            second.write(java_string(b'"]')[1:])
        template.write_number(second, 4, time_us)
        template.write_number(second, 5, time_us * 1000)
        template.write_optional(second, 6, self._gtid)
        template.write_text(second, 7, b"shardstream." + str(int(time_us)).encode("ascii"))
        second.write(gaps[8])
        third = BytesWriter()
        template.write_text(third, 9, envelope.shard)
        template.write_text(third, 10, self._token)
        template.write_text(third, 11, letter.encode("ascii"))
        template.write_number(third, 12, self.processed_us // 1000)
        template.write_number(third, 13, self.processed_us)
        template.write_number(third, 14, self.processed_us * 1000)
        third.write(gaps[15])
        return MessageEnd(first.getvalue(), second.getvalue(), third.getvalue())

    def _flat_tail(self, letter: str) -> MessageEnd:
        """Return what a flat row has behind its columns."""
        template, envelope, gaps = self.template, self.envelope, self.template.gaps
        time_us = envelope.timestamp_us
        first = BytesWriter()
        template.write_text(first, 0, b"true" if letter == "d" else b"false")
        template.write_text(first, 1, letter.encode("ascii"))
        template.write_number(first, 2, time_us // 1000)
        template.write_number(first, 3, time_us)
        template.write_text(first, 4, envelope.shard)
        first.write(gaps[5])
        third = BytesWriter()
        template.write_text(third, 6, self._token)
        third.write(gaps[7])
        return MessageEnd(first.getvalue(), b"", third.getvalue())
