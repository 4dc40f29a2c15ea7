"""Input files of the demo: what must hold for the records of any, and how a Parquet file is made."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from raymq.demo.input import (
    InputRecord,
    describe,
    read,
)


def records_of(path: Path, key: str | None = None) -> list[InputRecord]:
    """All records; checks what must hold for any file: numbering, and that a listener judges as the reader did."""
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
    """Write the table; the path again."""
    pq.write_table(table, path)
    return path
