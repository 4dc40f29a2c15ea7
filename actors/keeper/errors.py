"""What a call on the register of keepers ends with when it is not done."""

from __future__ import annotations

from raymq.storage.errors import RayMQError


class RegisterError(RayMQError):
    """Base of what a call on the register can end with."""


class RegisterConflict(RegisterError):
    """The value is another one than the change was made from: nothing was changed. Read it again and decide anew."""


class RegisterUnavailable(RegisterError):
    """No majority of the keepers could be asked: nothing was changed by this call."""

    retriable = True


class RegisterHeld(RegisterError):
    """The change would take a master away whose lease has not ended, or the keepers have just started: not changed.

    `.wait_seconds` says when to try again.
    """

    retriable = True

    def __init__(self, message: str = "", wait_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.wait_seconds = wait_seconds


class RegisterUnknown(RegisterError):
    """The change may be made now, or later, or never: `settle` the register before anything is built on either."""

    retriable = True
