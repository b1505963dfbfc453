"""Invalid dates of the open record: written as null, with their text in the record's envelope."""

from librt.strings import BytesWriter
from mypy_extensions import i64

from producers.decoder.tables.plan import ColumnPlan
from producers.decoder.values.wire import encode_string, write_long


class InvalidDate:
    """A date that does not exist. `image`: 0 before, 1 after; `text`: as the server prints it."""

    def __init__(self, image: i64, column: i64, key_slot: i64, text: str) -> None:
        """Take its place in the row, and its text."""
        self.image: i64 = image
        self.column: i64 = column
        self.key_slot: i64 = key_slot
        self.text: str = text


class InvalidDates:
    """Those of the open record."""

    def __init__(self) -> None:
        """Begin with none."""
        self.image: i64 = 0  # of the values that are written now
        self.notes: list[InvalidDate] = []

    def note(self, column: ColumnPlan, text: str) -> None:
        """Note one that was written as null."""
        self.notes.append(InvalidDate(self.image, column.index, column.key_slot, text))

    def take_text(self) -> str:
        """Return the text of the only one, "" for none, and forget it."""
        if len(self.notes) == 0:
            return ""
        text = self.notes[0].text
        self.notes = []
        return text

    def encoded(self) -> bytes:
        """Return the blocks of the envelope's field, without the zero that ends them."""
        out = BytesWriter()
        write_long(out, len(self.notes))
        for note in self.notes:
            write_long(out, note.image)
            write_long(out, note.column)
            out.write(encode_string(note.text))
        return out.getvalue()
