"""A ballast has its room, or it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage.files import fileutil
from raymq.storage.files.disk_reserve import DiskReserve


class Died(BaseException):
    """What a kill looks like within this process."""


def test_one_whose_maker_died_before_it_had_its_room_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
