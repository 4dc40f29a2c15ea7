"""What a forked child must make anew: threads, loops and locks do not survive a fork."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")

#: Who is renewed, and how.
_Owners = list[tuple[weakref.ref[Any], Callable[[Any], None]]]
#: What others use, such as connections: renewed first, so that those find it as it will be in the child.
_used: _Owners = []
#: Everybody else. Among themselves in the order of registration.
_users: _Owners = []
#: What a child has of its parent, and leaves as it is.
_of_the_parent: list[object] = []


def renew_in_child(owner: _T, renew: Callable[[_T], None], *, before_users: bool = False) -> None:
    """Call `renew(owner)` in every child that this process forks, as long as `owner` lives.

    Args:
        before_users: whether others use it, so that it has to be renewed before all that is not registered so. Which
            module was imported first, and what was made first, does not matter then.
    """
    owners = _used if before_users else _users
    owners[:] = [(known, call) for known, call in owners if known() is not None]
    owners.append((weakref.ref(owner), renew))


def leave_to_parent(thing: object) -> None:
    """In a child: keep what is the parent's as it is. Even to destroy it could do something in the parent's name."""
    _of_the_parent.append(thing)


def _renew_all() -> None:
    for reference, renew in [*_used, *_users]:
        owner = reference()
        if owner is not None:
            renew(owner)


os.register_at_fork(after_in_child=_renew_all)
