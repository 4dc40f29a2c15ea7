"""Find and kill the processes of a cluster's actors."""

from __future__ import annotations

import os
import signal

import ray

from tests.polling import poll_until


def pid_of(actor: str, namespace: str) -> int:
    """Return the process id of a named actor; wait for it while it restarts."""
    pid: int = ray.get(ray.get_actor(actor, namespace=namespace).pid.remote(), timeout=60)
    return pid


def kill(actor: str, namespace: str) -> int:
    """Kill it by SIGKILL; return its process id."""
    pid = pid_of(actor, namespace)
    os.kill(pid, signal.SIGKILL)
    return pid


def await_restart(actor: str, namespace: str, killed_pid: int) -> None:
    """Wait until another process answers for it."""

    def restarted() -> bool:
        try:
            return pid_of(actor, namespace) != killed_pid
        except ray.exceptions.RayError:
            return False

    poll_until(restarted, 60, f"{actor} is back")
