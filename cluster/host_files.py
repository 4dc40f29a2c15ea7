"""Find out which actors' files are on which machines of the cluster.

Each machine is queried for the contents of its root. The files take precedence over the recorded layout, because a
machine may have a new name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import ray
from ray.exceptions import RayError

from raymq.actors import actor_calls
from raymq.actors.errors import BrokerUnavailable
from raymq.actors.naming import is_broker_name, is_keeper_name, is_name_server_name

#: A worker process must be started on each machine.
_REQUEST_SECONDS: Final = 60.0
_TRACE: Final = 0.001


def local_actor_names(root: Path) -> set[str]:
    """Return the actors whose files are in this machine's root; none without the folder."""
    if not root.is_dir():
        return set()
    named = {each.name: each for each in root.iterdir()}
    brokers = {name for name, each in named.items() if is_broker_name(name) and (each / "raymq").is_dir()}
    files = {name.partition(".")[0] for name, each in named.items() if each.is_file()}
    return brokers | {name for name in files if is_keeper_name(name) or is_name_server_name(name)}


def list_host_files(root: Path, resources: Sequence[str]) -> dict[str, set[str]]:
    """Return the actors with files on each machine; empty if there is only one machine.

    Raises:
        BrokerUnavailable: a machine does not answer.
    """
    if len(resources) < 2:
        return {}
    look = ray.remote(num_cpus=0, max_retries=2)(local_actor_names)
    requests = {each: look.options(resources={each: _TRACE}).remote(root) for each in resources}
    try:
        return {each: actor_calls.result(each, ref, _REQUEST_SECONDS) for each, ref in requests.items()}
    except RayError as error:  # The worker process or the machine died.
        raise BrokerUnavailable("cluster", f"a machine did not list the files in {root}: {error}") from error


def locate_actor(name: str, written: str | None, seen: Mapping[str, Collection[str]]) -> str | None:
    """Return the machine with the files of `name`, else the recorded one.

    The recorded machine is returned if no queried machine has the files.

    Raises:
        BrokerUnavailable: several machines have them, and the recorded one is not among them.
    """
    there = sorted(each for each, names in seen.items() if name in names)
    if not there or written in there:
        return written
    if len(there) > 1:
        raise BrokerUnavailable(
            name,
            f"its files are on several machines ({', '.join(there)}), and it is not known which are the newest",
            remedy="move the older files out of the root there",
        )
    return there[0]
