"""Test that a failed disk is not trusted by the next open."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage.errors import StoreFailed
from raymq.storage.files import disk_health as health_module
from raymq.storage.files.disk_health import DiskHealth
from raymq.storage.files.file_calls import FileCalls, replaced


class ReadOnly(FileCalls):
    """Fake a disk that went away and came back read-only."""

    def unlink(self, path: Path) -> None:
        raise OSError(30, "Read-only file system", str(path))


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr(health_module, "_MEMORY", tmp_path / "memory")


@pytest.mark.parametrize("calls", [FileCalls(), ReadOnly()], ids=["writable", "read-only"])
def test_disk_failure_is_known_to_the_next_open(tmp_path: Path, calls: FileCalls) -> None:
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


def test_replaced_marker_file_is_not_taken_as_failed(tmp_path: Path) -> None:
    marker = tmp_path / "healthy"
    health = DiskHealth(marker)
    health.certify()
    with replaced(ReadOnly()):
        health.fail(OSError(5, "Input/output error"))
    (tmp_path / "another").write_bytes(b"")
    (tmp_path / "another").replace(marker)
    assert DiskHealth(marker).was_healthy


@pytest.mark.parametrize("opened_again", [False, True])
def test_failure_is_recorded_when_the_marker_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened_again: bool
) -> None:
    # The place of the record used to be computed after the failure, so that nothing was recorded.
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
