"""A ballast has its room, or it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage.files import fileutil
from raymq.storage.files.ballast import Ballast


class Died(BaseException):
    """What a kill looks like within this process."""


def test_one_whose_maker_died_before_it_had_its_room_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise Died

    ballast, path = Ballast(tmp_path / "ballast", 1 << 20), tmp_path / "ballast"
    with monkeypatch.context() as patched:
        patched.setattr(fileutil, "allocate", dies)
        with pytest.raises(Died):
            ballast.make()
    assert not ballast.is_there
    ballast.make()
    assert ballast.is_there
    assert path.stat().st_blocks * 512 >= 1 << 20
    assert ballast.release()
    assert list(tmp_path.iterdir()) == []
