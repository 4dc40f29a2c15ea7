"""Test that archives on the path are read again only after a change."""

from __future__ import annotations

import importlib
import sys
import zipfile
import zipimport
from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.spark_bridge.worker_daemon import cache_unchanged_archives


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Collect the archives that are read."""
    seen: list[str] = []
    read = zipimport._read_directory  # type: ignore[attr-defined]

    def counted(archive: str) -> object:
        seen.append(archive)
        return read(archive)

    monkeypatch.setattr(zipimport, "_read_directory", counted)
    monkeypatch.setattr(zipimport.zipimporter, "invalidate_caches", zipimport.zipimporter.invalidate_caches)
    modules = set(sys.modules)
    yield seen
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def archive(path: Path, **modules: str) -> None:
    with zipfile.ZipFile(path, "w") as made:
        for name, text in modules.items():
            made.writestr(f"{name}.py", text)


def test_changed_archive_is_read_again_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str]) -> None:
    path = tmp_path / "modules.zip"
    archive(path, raymq_first="value = 1")
    monkeypatch.syspath_prepend(str(path))
    assert importlib.import_module("raymq_first").value == 1
    cache_unchanged_archives()
    reads.clear()
    for _ in range(3):
        importlib.invalidate_caches()
        assert importlib.util.find_spec("raymq_second") is None
    assert str(path) not in reads
    archive(path, raymq_first="value = 1", raymq_second="value = 22")
    importlib.invalidate_caches()
    assert importlib.import_module("raymq_second").value == 22
    assert reads.count(str(path)) == 1
    importlib.invalidate_caches()
    assert importlib.util.find_spec("raymq_third") is None
    assert reads.count(str(path)) == 1


def test_removed_archive_has_no_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str]) -> None:
    path = tmp_path / "modules.zip"
    archive(path, raymq_gone="value = 1")
    monkeypatch.syspath_prepend(str(path))
    assert importlib.util.find_spec("raymq_gone") is not None
    cache_unchanged_archives()
    path.unlink()
    importlib.invalidate_caches()
    assert importlib.util.find_spec("raymq_gone") is None
