"""SIGKILL at each step of a directory's format upgrade: the directory has the old format or the new one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from raymq.storage import directory_format
from raymq.storage.directory_format import read_format
from raymq.storage.errors import FormatTooNew
from raymq.storage.failpoints import NAMES, arm
from raymq.storage.files import json_file
from raymq.storage.store import Store
from tests.store_records import SMALL, append, bodies, make_record

pytestmark = pytest.mark.crash

STEPS = [f"{name}:{n}" for name in NAMES if name.startswith("replace.") for n in (1, 2)]
STEPS += ["format.before_spare", "format.before_file", "format.after_file"]
OLD = directory_format.CURRENT_FORMAT
NEW = OLD + 1


@pytest.mark.parametrize("has_file", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_killed_format_upgrade_leaves_old_or_new_format(
    tmp_path: Path, step: str, has_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path, SMALL) as store:
        append(store, make_record(b"old"))
    if not has_file:  # as in versions before the format file
        path = directory_format.path_of(tmp_path)
        for each in (path, json_file.backup_path_of(path)):
            each.unlink()
    assert kill_during_open(tmp_path, step) == -signal.SIGKILL
    number = read_format(tmp_path).number
    assert number in (OLD if has_file else directory_format.UNVERSIONED_FORMAT, NEW)
    if number != NEW:  # nothing of the new format is stored yet: the old RayMQ can open it
        with Store.open(tmp_path, SMALL) as store:
            assert bodies(store) == [b"old"]
    else:
        with pytest.raises(FormatTooNew):
            Store.open(tmp_path, SMALL)
    monkeypatch.setattr(directory_format, "CURRENT_FORMAT", NEW)
    with Store.open(tmp_path, SMALL) as store:
        assert bodies(store) == [b"old"]
        append(store, make_record(b"new"))
    assert read_format(tmp_path).number == NEW


def kill_during_open(directory: Path, step: str) -> int:
    """Return the exit code of a process of a newer RayMQ that opens the directory."""
    child = os.fork()
    if not child:
        try:
            directory_format.CURRENT_FORMAT = NEW  # type: ignore[misc]
            arm(step)
            Store.open(directory, SMALL)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
