"""Errors of a call on the register."""

from __future__ import annotations

from raymq.storage.errors import RayMQError


class RegisterError(RayMQError):
    """Base of all errors of a call on the register."""


class RegisterConflict(RegisterError):
    """The value differs from the one that the change was made from.

    Nothing was changed. Read the value again and decide again.
    """


class RegisterUnavailable(RegisterError):
    """No majority of the keepers could be reached. This call changed nothing."""

    retriable = True


class RegisterHeld(RegisterError):
    """The change would replace a master whose lease has not ended, or may not have.

    A keeper that has just started cannot exclude a lease. Nothing was changed. `.wait_seconds` says when to try again.
    """

    retriable = True

    def __init__(self, message: str = "", wait_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.wait_seconds = wait_seconds


class RegisterUnknown(RegisterError):
    """The change may be made now, later or never.

    Call `settle` on the register before anything is built on either outcome.
    """

    retriable = True
