"""The common parts of the readers of `raymq demo`'s formats.

They are the record, the plan of a file, its keys, types and errors.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from raymq.demo.dirty_rule import ColumnType, DirtyRule, Format, is_empty
from raymq.storage.errors import InvalidInput
from raymq.storage.records.message_limits import DEFAULT_MESSAGE_BYTES

#: The largest body of a message by the cluster's default configuration.
MAX_BODY_BYTES: Final = DEFAULT_MESSAGE_BYTES
#: A key is one of a message's properties, which have 32,767 bytes together.
MAX_KEY_BYTES: Final = 16 * 1024

SAMPLE_VALUES: Final = 1_000
NUMBER_PERCENT: Final = 95

#: The escape sign, separators of keys and properties, and characters without UTF-8.
_UNSAFE_IN_KEY = re.compile(r"[%\s\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class InputRecord:
    """One record of the input.

    `number` counts from 1; `key` is the key column's text (`message_key` converts it to a message's key). `reason` says
    why a dirty record is dirty, None for a clean one. `values` are the body's, empty if it is not an object.
    """

    number: int
    key: str
    body: bytes
    dirty: bool
    reason: str | None
    values: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class InputPlan:
    """The result of reading a file once: its records and its columns' types.

    The records do not include header and blank lines. `key` is the key column's name; "" if a JSONL file has no object
    and therefore no column.
    """

    path: Path
    format: Format
    rows: int
    columns: tuple[str, ...]
    types: dict[str, ColumnType]
    key: str
    max_body_bytes: int = MAX_BODY_BYTES

    @property
    def rule(self) -> DirtyRule:
        """Return the rule that determines from a body whether its record is dirty."""
        checked = () if self.format == "parquet" else tuple((n, t) for n, t in self.types.items() if t != "text")
        return DirtyRule(self.format, self.columns, checked, self.key)

    def record(self, number: int, key: str, text: str, reason: str | None, values: dict[str, Any]) -> InputRecord:
        """Return the record with this body.

        Raise InvalidInput if the body or the key is too large for a message.
        """
        body = text.encode("utf-8", "surrogatepass")
        if len(body) > self.max_body_bytes:
            raise record_size_error(number, self.max_body_bytes)
        check_key(key, number)
        return InputRecord(number, key, body, reason is not None, reason, values)


class TypeSample:
    """The types of a column's first 1,000 values that are not empty.

    It counts these values, the numbers among them, and the ints among the numbers.
    """

    __slots__ = ("ints", "numbers", "seen")

    def __init__(self) -> None:
        self.seen = self.numbers = self.ints = 0

    def add(self, found: ColumnType) -> None:
        """Count one more value that is not empty; do nothing once the sample is full."""
        if self.seen < SAMPLE_VALUES:
            self.seen += 1
            self.numbers += found != "text"
            self.ints += found == "int"

    @property
    def full(self) -> bool:
        """Return True if further values do not count."""
        return self.seen >= SAMPLE_VALUES

    def column_type(self) -> ColumnType:
        """Return "text" below 95 % of numbers, "int" if all numbers are ints, else "float"."""
        if self.numbers == 0 or self.numbers * 100 < NUMBER_PERCENT * self.seen:
            return "text"
        return "int" if self.ints == self.numbers else "float"


def message_key(key: str) -> str:
    """Percent-encode blanks and control characters, so that a text is a valid key.

    `input_key` is the inverse.
    """
    return _UNSAFE_IN_KEY.sub(
        lambda found: "".join(f"%{each:02X}" for each in found[0].encode("utf-8", "surrogatepass")), key
    )


def input_key(key: str) -> str:
    """Return the text of a key that `message_key` encoded."""
    return unquote(key, encoding="utf-8", errors="surrogatepass")


def key_text(value: Any) -> str:
    """Return a key column's value as text.

    A string is unchanged, an empty value is "", and any other value is JSON.
    """
    if is_empty(value):
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def key_column(key: str | None, columns: tuple[str, ...]) -> str:
    """Return the requested key column, by default the first.

    Raise InvalidInput if there is no column of that name.
    """
    if key is None:
        return columns[0] if columns else ""
    if key not in columns:
        shown = ", ".join(columns[:20]) + (", ..." if len(columns) > 20 else "")
        raise InvalidInput("key", f"one of the columns {shown}" if columns else "a column; the input has none", key)
    return key


def check_key(key: str, number: int) -> None:
    """Raise InvalidInput if the key of record `number` is too long for a message."""
    if len(key) * 12 > MAX_KEY_BYTES and len(message_key(key).encode()) > MAX_KEY_BYTES:
        raise InvalidInput("key", f"a key has at most {MAX_KEY_BYTES} bytes", f"record {number}: {key[:60]}...")


def unique_names(names: list[str]) -> tuple[str, ...]:
    """Make a header's names unique and not empty.

    An empty name becomes `column_<position>`, a repeated one `<name>_<position>`.
    """
    original = set(names)
    used: set[str] = set()
    unique: list[str] = []
    for position, name in enumerate(names, start=1):
        candidate = name or f"column_{position}"
        while candidate in used or (candidate != name and candidate in original):
            candidate = f"{candidate}_{position}"
        used.add(candidate)
        unique.append(candidate)
    return tuple(unique)


def empty_file_error(path: Path) -> InvalidInput:
    """Return the error for a file without a record, header or column."""
    return InvalidInput("input", "a file that is not empty", str(path))


def unreadable_file_error(path: Path, error: Exception, kind: str = "a file") -> InvalidInput:
    """Return the error for a file that the system or its format's reader cannot open."""
    return InvalidInput("input", f"{kind} that can be read", f"{path}: {error}")


def encoding_error(path: Path, error: UnicodeDecodeError) -> InvalidInput:
    """Return the error for a text file in another encoding."""
    return InvalidInput("input", "UTF-8 text", f"{path} with a byte 0x{error.object[error.start]:02x}")


def record_size_error(number: int, max_body_bytes: int) -> InvalidInput:
    """Return the error for a record that is too large for a message.

    Number 0 is the header.
    """
    return InvalidInput(
        "input",
        f"a record makes a message's body of at most {max_body_bytes} bytes",
        f"record {number}, which is larger" if number else "a header that is larger",
        remedy="look for a quote that is not closed, or raise max_message_bytes",
    )
