"""Test the script that finds a machine's data volume, with fake programs for cloud, disks and root."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

#: Each program logs its call. $STATE is a folder: `free` and `own` list volumes, `taken` those that another machine
#: attaches first, `blkid` has the exit code of that program, `mounted` exists when the folder is mounted.
PROGRAMS = {
    "curl": """
case "$*" in
    *api/token*) echo token;;
    *zone*) echo projects/1/zones/zone-a;;
    *) echo machine-1;;
esac
""",
    "aws": """
case "$*" in
    *attach-volume*) shift 3; grep -qx "$1" "$STATE/taken" && exit 1; echo "$1" >>"$STATE/own"; : >"$STATE/free";;
    *attachment.instance-id*) cat "$STATE/own";;
    *) cat "$STATE/free";;
esac
""",
    "gcloud": """
case "$*" in
    *attach-disk*) while [ "$1" != --disk ]; do shift; done; echo "$2" >>"$STATE/own"; : >"$STATE/free";;
    *users:instances*) cat "$STATE/own";;
    *) cat "$STATE/free";;
esac
""",
    "sudo": 'exec "$@"',
    "blkid": 'exit "$(cat "$STATE/blkid")"',
    "mkfs.ext4": "",
    "mount": "",
    "chown": "",
    "mountpoint": 'test -e "$STATE/mounted"',
    "sleep": "",
}


class Machine:
    """A machine with its own state and a log of program calls."""

    def __init__(self, folder: Path, script: Path) -> None:
        self.state = folder / "state"
        self.folder = folder / "data"
        self._bin = folder / "bin"
        # The folder in place of /dev, which a test may not write.
        self.disks = folder / "dev"
        for each in (self.state, self._bin, self.disks):
            each.mkdir()
        for name, text in PROGRAMS.items():
            program = self._bin / name
            program.write_text(f'#!/bin/sh\necho "{name} $*" >>"$STATE/calls"\n{text}\n')
            program.chmod(0o755)
        for name in ("own", "free", "taken", "calls"):
            (self.state / name).touch()
        (self.state / "blkid").write_text("0")
        self._script = folder / "data-volume.sh"
        self._script.write_text(script.read_text("utf-8").replace("/dev/", f"{self.disks}/"), "utf-8")

    def has(self, name: str, *lines: str) -> None:
        (self.state / name).write_text("".join(f"{line}\n" for line in lines))

    def disk(self, path: str) -> None:
        (self.disks / path).parent.mkdir(parents=True, exist_ok=True)
        (self.disks / path).touch()

    def run(self, provider: str, patience: int = 600) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", str(self._script), provider, "raymq", "worker", str(self.folder)],
            env={
                "PATH": f"{self._bin}:{os.environ['PATH']}",
                "STATE": str(self.state),
                "RAYMQ_VOLUME_SECONDS": str(patience),
            },
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def calls(self, program: str) -> list[str]:
        lines = (self.state / "calls").read_text().splitlines()
        return [line for line in lines if line.startswith(f"{program} ")]


@pytest.fixture
def machine(tmp_path: Path, repository: Path) -> Machine:
    return Machine(tmp_path, repository / "configs" / "data-volume.sh")


AWS_DISK = "disk/by-id/nvme-Amazon_Elastic_Block_Store_vol2"


def test_free_volume_is_attached_and_mounted(machine: Machine) -> None:
    machine.has("free", "vol-2")
    machine.disk(AWS_DISK)
    ended = machine.run("aws")
    assert ended.returncode == 0, ended.stderr
    assert machine.calls("mount") == [f"mount -o noatime {machine.disks}/{AWS_DISK} {machine.folder}"]
    assert machine.calls("mkfs.ext4") == []
    (query,) = [call for call in machine.calls("aws") if "Name=status" in call]
    for part in ("tag:raymq-cluster,Values=raymq", "tag:raymq-role,Values=worker", "availability-zone"):
        assert part in query


def test_google_disk_is_found_by_its_name(machine: Machine) -> None:
    machine.has("free", "disk-2")
    machine.disk("disk/by-id/google-disk-2")
    ended = machine.run("gcp")
    assert ended.returncode == 0, ended.stderr
    assert machine.calls("mount") == [f"mount -o noatime {machine.disks}/disk/by-id/google-disk-2 {machine.folder}"]
    (attached,) = [call for call in machine.calls("gcloud") if "attach-disk" in call]
    assert "attach-disk machine-1 --zone zone-a --disk disk-2" in attached


def test_attached_volume_is_used_again(machine: Machine) -> None:
    machine.has("own", "vol-2")
    machine.has("free", "vol-3")
    machine.disk(AWS_DISK)
    assert machine.run("aws").returncode == 0
    assert not [call for call in machine.calls("aws") if "attach-volume" in call]


def test_volume_taken_by_another_machine_is_skipped(machine: Machine) -> None:
    machine.has("free", "vol-1", "vol-2")
    machine.has("taken", "vol-1")
    machine.disk(AWS_DISK)
    assert machine.run("aws").returncode == 0
    assert len([call for call in machine.calls("aws") if "attach-volume" in call]) == 2


def test_empty_volume_gets_a_file_system(machine: Machine) -> None:
    machine.has("free", "vol-2")
    machine.has("blkid", "2")
    machine.disk(AWS_DISK)
    assert machine.run("aws").returncode == 0
    assert len(machine.calls("mkfs.ext4")) == 1


@pytest.mark.parametrize("code", ["1", "4", "8"])
def test_unreadable_volume_is_never_formatted(machine: Machine, code: str) -> None:
    machine.has("free", "vol-2")
    machine.has("blkid", code)
    machine.disk(AWS_DISK)
    ended = machine.run("aws")
    assert ended.returncode == 1
    assert "cannot be determined" in ended.stderr
    assert machine.calls("mkfs.ext4") == machine.calls("mount") == []


def test_missing_free_volume_is_reported(machine: Machine) -> None:
    ended = machine.run("aws", patience=10)
    assert ended.returncode == 1
    assert "no volume of cluster raymq for a worker became free" in ended.stderr


def test_mounted_folder_is_left_unchanged(machine: Machine) -> None:
    machine.has("mounted", "")
    assert machine.run("aws").returncode == 0
    assert machine.calls("mount") == []
    assert not [call for call in machine.calls("aws") if "attach" in call]


def test_unknown_cloud_is_a_usage_error(machine: Machine) -> None:
    assert machine.run("azure").returncode == 2
