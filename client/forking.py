"""What a forked child must make anew: threads, loops and locks do not survive a fork."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")

#: In the order of registration, so that a connection is there again before those who use it.
_owners: list[tuple[weakref.ref[Any], Callable[[Any], None]]] = []
#: What a child has of its parent, and leaves as it is.
_of_the_parent: list[object] = []


def renew_in_child(owner: _T, renew: Callable[[_T], None]) -> None:
    """Call `renew(owner)` in every child that this process forks, as long as `owner` lives."""
    _owners[:] = [(known, call) for known, call in _owners if known() is not None]
    _owners.append((weakref.ref(owner), renew))


def leave_to_parent(thing: object) -> None:
    """In a child: keep what is the parent's as it is. Even to destroy it could do something in the parent's name."""
    _of_the_parent.append(thing)


def _renew_all() -> None:
    for reference, renew in _owners:
        owner = reference()
        if owner is not None:
            renew(owner)


os.register_at_fork(after_in_child=_renew_all)
