"""Reset objects in forked children, and release others before a fork.

Threads, event loops and locks do not survive a fork: a child creates them again. Files of a library that keeps its own
table of open files, such as SQLite, must not be open in a child, which would inherit the parent's table.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")

#: The registered objects and how each is reset.
_Owners = list[tuple[weakref.ref[Any], Callable[[Any], None]]]
#: Objects that others use, such as connections: reset first, so that their users find them as they are in the child.
_used: _Owners = []
#: All other objects. Within both lists, the order of registration.
_users: _Owners = []
#: Objects of the parent that a child keeps and never touches.
_of_the_parent: list[object] = []
#: Objects that are released before a fork and resumed after it; none is added during a fork.
_let_go: list[tuple[weakref.ref[Any], Callable[[Any], None], Callable[[Any], None]]] = []
_adding = threading.RLock()
#: The objects that were released for the current fork, and how each is resumed.
_waiting: list[tuple[Any, Callable[[Any], None]]] = []


def register_child_reset(owner: _T, renew: Callable[[_T], None], *, before_users: bool = False) -> None:
    """Call `renew(owner)` in every child that this process forks, as long as `owner` exists.

    Args:
        before_users: others use the object, so that it has to be reset before all that are registered without this
            flag. The order of imports and of registration does not matter for this.
    """
    owners = _used if before_users else _users
    owners[:] = [(known, call) for known, call in owners if known() is not None]
    owners.append((weakref.ref(owner), renew))


def keep_for_parent(thing: object) -> None:
    """Keep an object of the parent alive in a child, untouched.

    Its destructor could act on resources that belong to the parent.
    """
    _of_the_parent.append(thing)


def register_fork_hooks(owner: _T, let_go: Callable[[_T], None], go_on: Callable[[_T], None]) -> None:
    """Call `let_go(owner)` before each fork and `go_on(owner)` after it.

    `go_on` is called in the parent and in the child. Both are called by the thread that forks, which waits for them:
    `let_go` waits for the current users of the object, and until `go_on` no thread may use it.
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
