"""What changes a file goes through `storage/files`, where tests stand between the store and its disk."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Of the os module; what reads, and flags and types, may be used everywhere.
OS_CALLS = {
    *("open", "write", "pwrite", "writev", "pwritev", "sendfile", "copy_file_range", "ftruncate", "truncate"),
    *("rename", "renames", "replace", "unlink", "remove", "link", "symlink", "chmod", "utime"),
    *("mkdir", "makedirs", "rmdir", "removedirs", "fsync", "fdatasync", "sync", "posix_fallocate"),
}
#: Of paths. `rename` and `replace` are those of other things, too: text, calls of files behind the seam.
PATH_CALLS = {"write_bytes", "write_text", "unlink", "mkdir", "rmdir", "touch", "symlink_to", "hardlink_to", "chmod"}
SHUTIL_CALLS = {"rmtree", "copy", "copy2", "copyfile", "copyfileobj", "copytree", "move"}
#: What has methods of these names and goes through the seam.
SEAMS = {"self.real", "fileutil"}


def changes(source: str) -> Iterator[str]:
    """The calls in a source that change files past the seam."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        of, _, name = called.rpartition(".")
        if of == "os":
            wrong = name in OS_CALLS
        elif of == "shutil":
            wrong = name in SHUTIL_CALLS
        elif name == "open" and of not in SEAMS:
            modes = [each.value for each in node.args if isinstance(each, ast.Constant)]
            wrong = any(isinstance(mode, str) and set(mode) & set("wax+") and len(mode) < 4 for mode in modes)
        else:
            wrong = bool(of) and of not in SEAMS and name in PATH_CALLS
        if wrong:
            yield f"{node.lineno}: {called}"


def test_only_the_room_of_files_changes_files(repository: Path) -> None:
    room = repository / "storage"
    found = {
        str(path.relative_to(room)): wrong
        for path in sorted(room.rglob("*.py"))
        if "files" not in path.relative_to(room).parts and (wrong := list(changes(path.read_text(encoding="utf-8"))))
    }
    assert found == {}
    seam = (room / "files" / "file_calls.py").read_text(encoding="utf-8")
    assert len(list(changes(seam))) > 8, "the check finds the calls where they are"


@pytest.mark.parametrize(
    "source",
    ["os.replace(a, b)", "path.unlink()", "open(path, 'wb')", "path.open('r+b')", "shutil.rmtree(path)"],
)
def test_the_check_finds_a_change(source: str) -> None:
    assert list(changes(source))


@pytest.mark.parametrize(
    "source",
    [
        "path.open('rb')",
        "open(path)",
        "text.replace('a', 'b')",
        "self.real.unlink(path)",
        "fileutil.replace(path, b'')",
    ],
)
def test_the_check_lets_reading_and_the_seam_be(source: str) -> None:
    assert not list(changes(source))
