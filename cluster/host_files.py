"""Which actors' files are on which machines of the cluster: each is asked what its root holds.

Where something is on the disks counts more than what was written down of it: a machine may have another name now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import ray
from ray.exceptions import RayError

from raymq.actors import handles
from raymq.actors.errors import BrokerUnavailable
from raymq.actors.naming import is_broker_name, is_keeper_name, is_name_server_name

#: A worker process has to start on each machine.
_ASK_SECONDS: Final = 60.0
_TRACE: Final = 0.001


def names_in(root: Path) -> set[str]:
    """The actors whose files are in the root of this machine; none where there is no such folder."""
    if not root.is_dir():
        return set()
    named = {each.name: each for each in root.iterdir()}
    brokers = {name for name, each in named.items() if is_broker_name(name) and (each / "raymq").is_dir()}
    files = {name.partition(".")[0] for name, each in named.items() if each.is_file()}
    return brokers | {name for name in files if is_keeper_name(name) or is_name_server_name(name)}


def ask(root: Path, resources: Sequence[str]) -> dict[str, set[str]]:
    """What is in the root of each machine; nothing is asked where there is one machine only.

    Raises:
        BrokerUnavailable: a machine does not answer.
    """
    if len(resources) < 2:
        return {}
    look = ray.remote(num_cpus=0, max_retries=2)(names_in)
    asked = {each: look.options(resources={each: _TRACE}).remote(root) for each in resources}
    try:
        return {each: handles.result(each, ref, _ASK_SECONDS) for each, ref in asked.items()}
    except RayError as error:  # its process or its machine died
        raise BrokerUnavailable("cluster", f"a machine does not tell what is in {root}: {error}") from error


def located(name: str, written: str | None, seen: Mapping[str, Collection[str]]) -> str | None:
    """The machine that has the files of `name`; where none that was asked has them, the one that is written down.

    Raises:
        BrokerUnavailable: several have them, and it is not written down which is right.
    """
    there = sorted(each for each, names in seen.items() if name in names)
    if not there or written in there:
        return written
    if len(there) > 1:
        raise BrokerUnavailable(
            name,
            f"its files are on several machines ({', '.join(there)}), and it is not known which are the newest",
            remedy="move the older ones out of the root there",
        )
    return there[0]
