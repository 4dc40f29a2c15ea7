"""Test the `raymq` command: interrupts during its import, and how it finds its cluster."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from raymq.cluster import cli, cluster_file, cluster_file_check

COMMAND = [sys.executable, "-c", "from raymq.cluster.command import main; main()", "store", "verify", "/none"]


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("library", ["click", "numpy", "pyarrow"])
def test_command_interrupted_during_import_has_no_traceback(which: signal.Signals, library: str) -> None:
    """Cover a regression: an interrupt in the first two seconds printed a traceback."""
    insert_finder = "import sys; sys.meta_path.insert(0, type('', (), {'find_spec': staticmethod(tell)}))"
    tell = (
        "import os, time\n"
        "def tell(name, *_):\n"
        f"    if name == {library!r}:\n"
        "        os.write(1, b'there')\n"
        "        time.sleep(60)\n"
    )
    program = f"{tell}{insert_finder}\n{COMMAND[2]}"
    with subprocess.Popen(
        [sys.executable, "-c", program, *COMMAND[3:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"there"
        process.send_signal(which)
        _, error_output = process.communicate(timeout=30)
    assert error_output == b"interrupted\n"
    assert process.returncode == 128 + which


def test_background_command_keeps_ignoring_sigint() -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from raymq.cluster import command, cli\n"
        "cli.main = lambda: print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)\n"
        "command.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True\n"


def test_command_with_closed_stdout_ends_normally(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from raymq.cluster.command import main; main()",
        "store",
        "backups",
        str(tmp_path),
    ]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return the connect calls; this user's cluster file names a cluster that answers."""
    taken: list[str] = []

    def connect(namespace: str = "", address: str = "", *, name_servers: object = None, **_: object) -> None:
        taken.append(f"{name_servers}" if name_servers else f"ray {address} {namespace}")
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "connect", connect)
    for name in ("RAY_ADDRESS", "RAYMQ_NAME_SERVERS", "RAYMQ_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(cluster_file.HOME_VARIABLE, str(tmp_path))
    monkeypatch.setattr(cluster_file_check, "verified_name_servers", lambda _, known, __: known.name_servers)
    cluster_file.save("raymq", ["noted:1"], None, None)
    return taken


NOTED, SERVERS = "('noted:1',)", "env:1"


@pytest.mark.parametrize(
    ("said", "environment", "way"),
    [
        ([], {}, NOTED),
        (["--namespace", "other"], {}, "ray auto other"),
        ([], {"RAY_ADDRESS": "env:2"}, "ray env:2 raymq"),
        ([], {"RAY_ADDRESS": "auto"}, "ray auto raymq"),
        ([], {"RAYMQ_NAME_SERVERS": SERVERS, "RAY_ADDRESS": "env:2"}, SERVERS),
        (["--address", "said:1"], {}, "ray said:1 raymq"),
        (["--address", "auto"], {}, "ray auto raymq"),
        (["--address", "said:1"], {"RAYMQ_NAME_SERVERS": SERVERS, "RAY_ADDRESS": "env:2"}, "ray said:1 raymq"),
        (["--name-servers", "said:2"], {"RAYMQ_NAME_SERVERS": SERVERS, "RAY_ADDRESS": "env:2"}, "said:2"),
        (["--name-servers", "said:2", "--address", "said:1"], {}, "said:2"),
    ],
)
def test_cluster_is_found_by_options_then_environment_then_file(
    ways: list[str], said: list[str], environment: dict[str, str], way: str
) -> None:
    CliRunner().invoke(cli.main_group, [*said, "topic", "list"], env=environment)
    assert ways == [way]
