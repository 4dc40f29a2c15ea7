"""Helpers for input files of the demo: check the records of a file, and write sample files."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from raymq.demo.demo_input import InputRecord, describe, read


def records_of(path: Path, key: str | None = None) -> list[InputRecord]:
    """Return all records, after checks of their numbers and of the dirty rule."""
    plan = describe(path, key)
    found = list(read(plan))
    rule = pickle.loads(pickle.dumps(plan.rule))
    assert len(found) == plan.rows
    assert [each.number for each in found] == list(range(1, len(found) + 1))
    for each in found:
        assert rule.reason(each.body) == each.reason
        assert each.dirty == (each.reason is not None)
        assert each.body
    return found


def write_parquet(path: Path, table: pa.Table) -> Path:
    """Write the table and return the path."""
    pq.write_table(table, path)
    return path


#: The counts that `raymq demo --json` prints for `json_lines`.
JSON_LINES_COUNTS = {
    "rows": 500,
    "sent": 500,
    "consumed": 495,
    "dirty": 5,
    "dead_letters": 5,
    "spark_rows": 500,
    "spark_dead_letters": 5,
    "ok": True,
}


def json_lines(folder: Path) -> Path:
    """Write 500 orders, five of them dirty.

    The five: broken JSON, no object, no key, text as a number, and a text that Spark takes for NaN.
    """
    rows = [{"id": f"order {n}", "amount": n * 1.5, "state": "paid" if n % 3 else "open"} for n in range(500)]
    lines = [json.dumps(row) for row in rows]
    lines[7] = '{"id": "broken", '
    lines[8] = '["no", "object"]'
    lines[9] = '{"id": "", "amount": 1}'
    lines[10] = '{"id": "order 10", "amount": "a lot"}'
    lines[11] = '{"id": "order 11", "amount": "NaN", "state": "open"}'
    path = folder / "orders.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path
