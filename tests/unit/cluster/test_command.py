"""The `raymq` command that is interrupted before it has begun, and how it finds its cluster."""

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
def test_a_command_that_is_interrupted_while_it_is_loaded_leaves_no_traceback(
    which: signal.Signals, library: str
) -> None:
    """The first two seconds ended in a KeyboardInterrupt out of whatever was being imported."""
    told = "import sys; sys.meta_path.insert(0, type('', (), {'find_spec': staticmethod(tell)}))"
    tell = (
        "import os, time\n"
        "def tell(name, *_):\n"
        f"    if name == {library!r}:\n"
        "        os.write(1, b'there')\n"
        "        time.sleep(60)\n"
    )
    program = f"{tell}{told}\n{COMMAND[2]}"
    with subprocess.Popen(
        [sys.executable, "-c", program, *COMMAND[3:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"there"
        process.send_signal(which)
        _, said = process.communicate(timeout=30)
    assert said == b"interrupted\n"
    assert process.returncode == 128 + which


def test_what_a_shell_runs_behind_itself_is_not_interrupted_by_its_terminal() -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from raymq.cluster import command, cli\n"
        "cli.main = lambda: print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)\n"
        "command.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True\n"


def test_a_command_whose_stdout_is_closed_ends_as_it_would_otherwise(tmp_path: Path) -> None:
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
    """By which way the cluster was looked for; this user has noted one that answers."""
    taken: list[str] = []

    def connect(namespace: str = "", address: str = "", *, name_servers: object = None, tls: object = None) -> None:
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
def test_a_cluster_is_looked_for_where_it_is_said_then_by_the_environment_then_by_notes(
    ways: list[str], said: list[str], environment: dict[str, str], way: str
) -> None:
    CliRunner().invoke(cli.main_group, [*said, "topic", "list"], env=environment)
    assert ways == [way]
