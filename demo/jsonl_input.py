"""Read JSON lines for `raymq demo`: one JSON object per line, in UTF-8.

The unchanged line is the message's body. The columns are the names of all objects, in the order of their first
occurrence; an object without a name has an empty value there. Only JSON's own numbers make a number column: "007" in
quotes is text.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from raymq.demo import input_plan as plans
from raymq.demo.dirty_rule import ColumnType, is_empty, parse_json

#: A file whose names are data (`{"<uuid>": 1}`) must not fill the memory: further names do not become columns.
MAX_COLUMNS: Final = 10_000

_BLANKS = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def describe(path: Path, key: str | None, max_body_bytes: int) -> plans.InputPlan:
    """Read the whole file: columns, types, number of records.

    Raise InvalidInput as `demo_input.describe`.
    """
    samples: dict[str, plans.TypeSample] = {}
    rows = 0
    for line in _lines(path, max_body_bytes):
        rows += 1
        values = parse_json(line)
        if not isinstance(values, dict):
            continue
        for name, value in values.items():
            if name not in samples and (len(samples) < MAX_COLUMNS or name == key):
                samples[name] = plans.TypeSample()
            if name in samples and not is_empty(value):
                samples[name].add(_type(value))
        if samples:
            plans.check_key(plans.key_text(values.get(next(iter(samples)) if key is None else key)), rows)
    if rows == 0:
        raise plans.empty_file_error(path)
    columns = tuple(samples)
    types = {name: sample.column_type() for name, sample in samples.items()}
    return plans.InputPlan(path, "jsonl", rows, columns, types, plans.key_column(key, columns), max_body_bytes)


def read(plan: plans.InputPlan) -> Iterator[plans.InputRecord]:
    """Yield the records in order."""
    rule = plan.rule
    for number, line in enumerate(_lines(plan.path, plan.max_body_bytes), start=1):
        values = parse_json(line)
        if isinstance(values, dict):
            yield plan.record(number, plans.key_text(values.get(plan.key)), line, rule.reason_of(values), values)
        else:
            yield plan.record(number, "", line, rule.reason(line.encode()), {})


def _lines(path: Path, max_body_bytes: int) -> Iterator[str]:
    """Yield the lines that are not blank, without the blanks around them."""
    number = 0
    at_start = True
    try:
        with path.open("rb") as file:
            while line := file.readline(max_body_bytes + 6):
                if len(line) > max_body_bytes + 5:  # Byte order mark and line end are not part of the body.
                    raise plans.record_size_error(number + 1, max_body_bytes)
                if at_start:
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                    at_start = False
                line = line.strip(_BLANKS)
                if len(line) > max_body_bytes:
                    raise plans.record_size_error(number + 1, max_body_bytes)
                if line:
                    yield line.decode("utf-8")
                    number += 1
    except UnicodeDecodeError as error:
        raise plans.encoding_error(path, error) from error
    except OSError as error:
        raise plans.unreadable_file_error(path, error) from error


def _type(value: object) -> ColumnType:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "text"
    return "int" if isinstance(value, int) else "float"
