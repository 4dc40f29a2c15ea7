"""Test the check of a directory in which a broker works."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage import verify as module
from raymq.storage.files.mapped_file_queue import files_of
from raymq.storage.store import Store
from tests.store_records import SMALL, append, make_record


def test_files_that_expire_during_a_check_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(tmp_path, SMALL) as store:
        for _ in range(100):
            append(store, make_record(b"x" * 100))

    def expired(folder: Path) -> list[Path]:
        paths = files_of(folder)
        paths[0].unlink()
        return paths

    before = module.verify(tmp_path)
    monkeypatch.setattr(module, "files_of", expired)
    report = module.verify(tmp_path)
    assert (before.bad_records, report.bad_records) == (0, 0)
    assert 0 < report.records < before.records == 100
