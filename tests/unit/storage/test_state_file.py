"""A state that says what cannot be is as good as none: all is worked out from the log."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raymq.storage.checkpoint import State
from raymq.storage.store import Store
from tests.stored import SMALL, append, bodies, make_record


@pytest.mark.parametrize("number", ["1e999", "-1e999", "null", '"x"', "[]", "9" * 5000])
def test_numbers_that_are_none(tmp_path: Path, number: str) -> None:
    with Store.open(tmp_path, SMALL) as store:
        append(store, make_record(b"0"), make_record(b"1"))
    path = tmp_path / "raymq" / "state.json"
    path.write_text(re.sub(r'"dispatched_to": \d+', f'"dispatched_to": {number}', path.read_text()))
    assert State.load(path) is None
    with Store.open(tmp_path, SMALL) as store:
        assert bodies(store) == [b"0", b"1"]
