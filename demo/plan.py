"""What the readers of `raymq demo`'s formats share: the record, the plan of a file, its keys, types and refusals."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from raymq.demo.rule import ColumnType, DirtyRule, Format, is_empty
from raymq.storage.errors import InvalidInput
from raymq.storage.records.limits import DEFAULT_MESSAGE_BYTES

#: The largest body of a message where the cluster's configuration says nothing else.
MAX_BODY_BYTES: Final = DEFAULT_MESSAGE_BYTES
#: A key is one of a message's properties, which have 32,767 bytes together.
MAX_KEY_BYTES: Final = 16 * 1024

SAMPLE_VALUES: Final = 1_000
NUMBER_PERCENT: Final = 95

#: The escape sign, what separates keys and properties, and what has no UTF-8.
_UNSAFE_IN_KEY = re.compile(r"[%\s\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class InputRecord:
    """One record: `number` counts from 1, `key` is the key column's text (`message_key` makes a message's key of it).

    `reason` says why a dirty record is dirty, None for a clean one. `values` are the body's, empty if it is no object.
    """

    number: int
    key: str
    body: bytes
    dirty: bool
    reason: str | None
    values: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class InputPlan:
    """What one reading of the file found: its records (without header and blank lines) and its columns' types.

    `key` is the key column's name; "" where a JSONL file has no object and therefore no column.
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
        """The rule that tells a record's dirtiness from its body."""
        checked = () if self.format == "parquet" else tuple((n, t) for n, t in self.types.items() if t != "text")
        return DirtyRule(self.format, self.columns, checked, self.key)

    def record(self, number: int, key: str, text: str, reason: str | None, values: dict[str, Any]) -> InputRecord:
        """The record with this body; raises InvalidInput if body or key are too large for a message."""
        body = text.encode("utf-8", "surrogatepass")
        if len(body) > self.max_body_bytes:
            raise too_large(number, self.max_body_bytes)
        check_key(key, number)
        return InputRecord(number, key, body, reason is not None, reason, values)


class TypeSample:
    """A column's first 1,000 values that are not empty: how many, how many of them numbers, how many of these ints."""

    __slots__ = ("ints", "numbers", "seen")

    def __init__(self) -> None:
        self.seen = self.numbers = self.ints = 0

    def add(self, found: ColumnType) -> None:
        """Count one more value that is not empty; does nothing once the sample is full."""
        if self.seen < SAMPLE_VALUES:
            self.seen += 1
            self.numbers += found != "text"
            self.ints += found == "int"

    @property
    def full(self) -> bool:
        """Whether further values do not count."""
        return self.seen >= SAMPLE_VALUES

    def column_type(self) -> ColumnType:
        """Text below 95 % of numbers; int if all the numbers are ints."""
        if self.numbers == 0 or self.numbers * 100 < NUMBER_PERCENT * self.seen:
            return "text"
        return "int" if self.ints == self.numbers else "float"


def message_key(key: str) -> str:
    """A text as a key that a message may have: blanks and control characters percent-encoded. `input_key` undoes it."""
    return _UNSAFE_IN_KEY.sub(
        lambda found: "".join(f"%{each:02X}" for each in found[0].encode("utf-8", "surrogatepass")), key
    )


def input_key(key: str) -> str:
    """The text that `message_key` made this key of."""
    return unquote(key, encoding="utf-8", errors="surrogatepass")


def key_text(value: Any) -> str:
    """A key column's value as text: a string as it is, an empty value as "", everything else as JSON."""
    if is_empty(value):
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def key_column(key: str | None, columns: tuple[str, ...]) -> str:
    """The key column: the one asked for, else the first; InvalidInput if there is none of that name."""
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
    """A header's names, none empty (`column_<position>`) and none twice (`<name>_<position>`)."""
    given = set(names)
    used: set[str] = set()
    unique: list[str] = []
    for position, name in enumerate(names, start=1):
        candidate = name or f"column_{position}"
        while candidate in used or (candidate != name and candidate in given):
            candidate = f"{candidate}_{position}"
        used.add(candidate)
        unique.append(candidate)
    return tuple(unique)


def empty(path: Path) -> InvalidInput:
    """The refusal of a file without a record, header or column."""
    return InvalidInput("input", "a file that is not empty", str(path))


def not_readable(path: Path, error: Exception, kind: str = "a file") -> InvalidInput:
    """The refusal of a file that the system or its format's reader does not open."""
    return InvalidInput("input", f"{kind} that can be read", f"{path}: {error}")


def not_utf8(path: Path, error: UnicodeDecodeError) -> InvalidInput:
    """The refusal of a text file in another encoding."""
    return InvalidInput("input", "UTF-8 text", f"{path} with a byte 0x{error.object[error.start]:02x}")


def too_large(number: int, max_body_bytes: int) -> InvalidInput:
    """The refusal of a record (0: the header) that no message could carry."""
    return InvalidInput(
        "input",
        f"a record makes a message's body of at most {max_body_bytes} bytes",
        f"record {number}, which is larger" if number else "a header that is larger",
        remedy="look for a quote that is not closed, or raise max_message_bytes",
    )
