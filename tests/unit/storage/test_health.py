"""A store's disk that failed is not trusted by the next opening, whatever it still takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage.errors import StoreFailed
from raymq.storage.files import disk_health as health_module
from raymq.storage.files.disk_health import DiskHealth
from raymq.storage.files.file_calls import FileCalls, replaced


class ReadOnly(FileCalls):
    """A disk that went away, and came back as one that nobody may write to."""

    def unlink(self, path: Path) -> None:
        raise OSError(30, "Read-only file system", str(path))


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr(health_module, "_MEMORY", tmp_path / "memory")


@pytest.mark.parametrize("calls", [FileCalls(), ReadOnly()], ids=["writable", "read-only"])
def test_a_failure_is_known_to_the_next_opening(tmp_path: Path, calls: FileCalls) -> None:
    marker = tmp_path / "healthy"
    health = DiskHealth(marker)
    assert not health.was_healthy
    health.certify()
    assert DiskHealth(marker).was_healthy
    with replaced(calls):
        health.fail(OSError(5, "Input/output error"))
    with pytest.raises(StoreFailed):
        health.check()
    assert not DiskHealth(marker).was_healthy
    again = DiskHealth(marker)
    again.certify()
    assert DiskHealth(marker).was_healthy, "what is on disk is known again"


def test_a_store_in_the_place_of_one_that_failed_is_another(tmp_path: Path) -> None:
    marker = tmp_path / "healthy"
    health = DiskHealth(marker)
    health.certify()
    with replaced(ReadOnly()):
        health.fail(OSError(5, "Input/output error"))
    (tmp_path / "another").write_bytes(b"")
    (tmp_path / "another").replace(marker)
    assert DiskHealth(marker).was_healthy


@pytest.mark.parametrize("opened_again", [False, True])
def test_a_disk_of_which_nothing_can_be_asked_is_known_to_have_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened_again: bool
) -> None:
    """Where the machine is told was worked out when the disk was gone, and so nobody was told."""
    marker = tmp_path / "healthy"
    health = DiskHealth(marker)
    health.certify()
    if opened_again:
        health = DiskHealth(marker)
    stat = Path.stat

    def gone(path: Path, **how: bool) -> object:
        if path == marker:
            raise OSError(5, "Input/output error", str(path))
        return stat(path, **how)

    with monkeypatch.context() as patched, replaced(ReadOnly()):
        patched.setattr(Path, "stat", gone)
        health.fail(StoreFailed("fsync"))
    assert not DiskHealth(marker).was_healthy
