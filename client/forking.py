"""What a forked child must make anew: threads, loops and locks do not survive a fork. And what must not be open in one:
a library that keeps books of its own of what is open, as SQLite does, has the parent's in the child.
"""

from __future__ import annotations

import os
import threading
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
#: What is let go before a fork and taken up behind it; nobody is added to it meanwhile.
_let_go: list[tuple[weakref.ref[Any], Callable[[Any], None], Callable[[Any], None]]] = []
_adding = threading.RLock()
#: Who was let go for the fork that is under way, and how each goes on.
_waiting: list[tuple[Any, Callable[[Any], None]]] = []


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


def let_go_before_fork(owner: _T, let_go: Callable[[_T], None], go_on: Callable[[_T], None]) -> None:
    """Call `let_go(owner)` before each fork of this process, and `go_on(owner)` behind it, in the parent and the child.

    Both are called by the thread that forks, which waits for them: `let_go` for who uses it now, and until `go_on`
    nobody else may.
    """
    with _adding:
        _let_go[:] = [known for known in _let_go if known[0]() is not None]
        _let_go.append((weakref.ref(owner), let_go, go_on))


def _before() -> None:
    _adding.acquire()
    for reference, let_go, go_on in _let_go:
        owner = reference()
        if owner is not None:
            let_go(owner)
            _waiting.append((owner, go_on))


def _behind() -> None:
    for owner, go_on in _waiting:
        go_on(owner)
    _waiting.clear()
    _adding.release()


def _in_child() -> None:
    _behind()
    _renew_all()


def _renew_all() -> None:
    for reference, renew in [*_used, *_users]:
        owner = reference()
        if owner is not None:
            renew(owner)


os.register_at_fork(before=_before, after_in_parent=_behind, after_in_child=_in_child)
