"""Test that a disk reserve has its space allocated or does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage.files import fileutil
from raymq.storage.files.disk_reserve import DiskReserve


class Died(BaseException):
    """Simulate a kill within this process."""


def test_reserve_is_recreated_after_a_kill_during_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object) -> None:
        raise Died

    disk_reserve, path = DiskReserve(tmp_path / "ballast", 1 << 20), tmp_path / "ballast"
    with monkeypatch.context() as patched:
        patched.setattr(fileutil, "allocate", dies)
        with pytest.raises(Died):
            disk_reserve.make()
    assert not disk_reserve.exists
    disk_reserve.make()
    assert disk_reserve.exists
    assert path.stat().st_blocks * 512 >= 1 << 20
    assert disk_reserve.release()
    assert list(tmp_path.iterdir()) == []
