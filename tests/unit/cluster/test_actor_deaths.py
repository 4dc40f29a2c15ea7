"""Test how Ray's messages on dead RayMQ processes are replaced; all others are written as before."""

from __future__ import annotations

from typing import Any

import pytest
from ray._private import worker as ray_worker

from raymq.cluster import actor_deaths
from tests.polling import poll_until

DEATH = (
    "A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, "
    "check the logs for the dead worker. Lease ID: 01 Worker ID: 09 Node ID: 91 Worker IP address: 127.0.0.2 "
    "Worker port: 37781 Worker PID: 19853 Worker exit type: SYSTEM_ERROR Worker exit detail: ..."
)


@pytest.mark.parametrize(
    ("data", "pid"),
    [
        ({"pid": "raylet", "lines": [DEATH]}, 19_853),
        ({"pid": 7, "lines": [DEATH]}, None),
        ({"pid": "raylet", "lines": ["2 workers were killed due to memory pressure"]}, None),
        ({"pid": "autoscaler", "lines": [DEATH]}, None),
        ({"pid": "raylet"}, None),
        ({}, None),
    ],
)
def test_death_message_has_the_process_id(data: dict[str, Any], pid: int | None) -> None:
    assert actor_deaths.dead_worker_pid(data) == pid


def actor(name: str, kind: str, pid: int) -> dict[str, Any]:
    return {"ActorID": name, "Name": name, "ActorClassName": kind, "Pid": pid, "State": "RESTARTING"}


@pytest.mark.parametrize(
    ("actors", "is_ours"),
    [
        ([actor("broker-a", "Broker", 19_853)], True),
        ([actor("broker-a", "Broker", 1)], False),
        ([actor("mine", "Trainer", 19_853)], False),
        ([actor("", "Broker", 19_853)], False),
    ],
)
def test_only_deaths_of_raymq_actors_are_suppressed(
    monkeypatch: pytest.MonkeyPatch, actors: list[dict[str, Any]], is_ours: bool
) -> None:
    written: list[Any] = []
    restarts: list[str] = []
    monkeypatch.setattr(actor_deaths, "_original_print", lambda data, **_: written.append(data))
    monkeypatch.setattr(actor_deaths, "_log_restart", lambda dead, *_: restarts.append(dead["Name"]))
    monkeypatch.setattr(actor_deaths, "_actors", {})
    monkeypatch.setattr(actor_deaths.ray_state, "actors", lambda: {each["ActorID"]: each for each in actors})
    message = {"pid": "raylet", "lines": [DEATH], "is_err": False}
    other = {"pid": "raylet", "lines": ["something else"], "is_err": False}
    for data in (message, other):
        actor_deaths._write(data, ignore_prefix=False)
    assert written == ([other] if is_ours else [message, other])


def test_death_of_a_restarted_actor_process_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quickly restarted actor has a new process before Ray reports the old one."""
    written: list[Any] = []
    restarts: list[Any] = []
    actors = [actor("broker-a", "Broker", 19_853)]
    monkeypatch.setattr(actor_deaths, "_original_print", lambda data, **_: written.append(data))
    monkeypatch.setattr(actor_deaths, "_log_restart", lambda dead, pid, _: restarts.append((dead["Name"], pid)))
    monkeypatch.setattr(actor_deaths, "_actors", {})
    monkeypatch.setattr(actor_deaths.ray_state, "actors", lambda: {each["ActorID"]: each for each in actors})
    actor_deaths.record_actor_pids()
    actors[0] = actor("broker-a", "Broker", 20_000)
    message = {"pid": "raylet", "lines": [DEATH], "is_err": False}
    actor_deaths._write(message, ignore_prefix=False)
    poll_until(lambda: restarts, 10)
    assert (restarts, written) == ([("broker-a", 19_853)], [])
    actor_deaths._write(message, ignore_prefix=False)
    assert written == [message], "the process id may be somebody else's by now"


def test_death_message_is_written_if_ray_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> dict[str, Any]:
        raise ConnectionError("no GCS")

    written: list[Any] = []
    monkeypatch.setattr(actor_deaths, "_original_print", lambda data, **_: written.append(data))
    monkeypatch.setattr(actor_deaths.ray_state, "actors", away)
    actor_deaths._write({"pid": "raylet", "lines": [DEATH]}, ignore_prefix=False)
    assert len(written) == 1


def test_print_function_of_ray_is_replaced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def rays_own(data: object, ignore_prefix: bool) -> None: ...

    monkeypatch.setattr(ray_worker, "print_to_stdstream", rays_own)
    monkeypatch.setattr(actor_deaths, "_original_print", None)
    actor_deaths.watch("a")
    actor_deaths.watch("b")
    assert actor_deaths._original_print is rays_own
    assert ray_worker.print_to_stdstream is actor_deaths._write
