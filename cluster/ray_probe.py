"""Probe a Ray before this process joins it.

The probe determines whether the Ray answers, its version, and its authentication mode. `ray.init` itself waits for
minutes for a Ray that does not answer, and prints a page for one that refuses the token. So the address is probed
first: with a socket, which shows within a second whether a server there speaks Ray's protocol, and then with child
processes, which can be killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from raymq.actors.errors import BrokerUnavailable

#: The seconds in which a Ray must answer the socket,
ANSWER_SECONDS: Final = 2.0
#: and in which it must report its version: most of that time is Ray's import.
REPLY_SECONDS: Final = 15.0
AUTH_MODE: Final = "RAY_AUTH_MODE"

#: The start of every HTTP/2 connection, which gRPC uses, and an empty settings frame.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))

#: Prints one line of JSON: the version of the Ray at argv[1], or that it refused to say.
_PROGRAM = """
import json, sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    metadata = GcsClient(address=sys.argv[1]).internal_kv_get(b"CLUSTER_METADATA", b"cluster", timeout=5)
    print(json.dumps({"ray_version": json.loads(metadata)["ray_version"] if metadata else None}))
except AuthenticationError:
    print(json.dumps({"refused": True}))
"""


@dataclass(frozen=True, slots=True)
class RayEndpoint:
    """A Ray that answers: its authentication mode, and its version (None: not reported)."""

    address: str
    auth_mode: Literal["disabled", "token"]
    version: str | None


class RayNotRunning(BrokerUnavailable):
    """No process listens at the address, or there is no address to probe."""


def probe_ray(address: str) -> RayEndpoint:
    """Probe the Ray at "host:port".

    Raises:
        RayNotRunning: the connection was refused.
        BrokerUnavailable: it does not answer within `ANSWER_SECONDS`, is not a Ray, or refuses our token.
    """
    _greet(address)
    open_door, ours = _request(address, {AUTH_MODE: "disabled"}), _request(address, {AUTH_MODE: "token"})
    try:
        without_token = _answer(address, open_door)
        if "refused" not in without_token:
            return RayEndpoint(address, "disabled", without_token["ray_version"])
        with_token = _answer(address, ours)
    finally:
        for process in (open_door, ours):
            process.kill()
            process.communicate()
    if "refused" in with_token:
        raise BrokerUnavailable(
            "ray",
            f"the Ray at {address} requires a token, and refused this user's",
            remedy="copy its token to ~/.ray/auth_token, or name its file in RAY_AUTH_TOKEN_PATH",
        )
    return RayEndpoint(address, "token", with_token["ray_version"])


def _greet(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS) as connected:
            connected.sendall(_GREETING)
            head = connected.recv(9)
    except ConnectionRefusedError as error:
        raise RayNotRunning("ray", f"nothing listens at {address}") from error
    except (OSError, ValueError, OverflowError) as error:
        raise BrokerUnavailable(
            "ray",
            f"the Ray at {address} does not answer within {ANSWER_SECONDS:g} s ({error})",
            remedy="give the address of a Ray that does (RAY_ADDRESS, address=), or RAY_ADDRESS=local to start one",
        ) from error
    if len(head) < 4 or head[3] != 4:  # The first frame of a server contains its settings.
        raise BrokerUnavailable("ray", f"the process that listens at {address} is not Ray")


def _request(address: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, address],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def _answer(address: str, process: subprocess.Popen[str]) -> dict[str, str]:
    """Return the answer of the probe's program.

    Raise BrokerUnavailable if it gave none.
    """
    errors = ""
    with contextlib.suppress(subprocess.TimeoutExpired, ValueError):
        out, errors = process.communicate(timeout=REPLY_SECONDS)
        answer: dict[str, str] = json.loads(out.strip().splitlines()[-1] if out.strip() else "")
        return answer
    reason = errors.strip().splitlines()[-1] if errors.strip() else f"no reply within {REPLY_SECONDS:g} s"
    raise BrokerUnavailable("ray", f"the Ray at {address} did not report its version: {reason}")
