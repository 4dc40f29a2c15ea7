"""Describe why listener calls failed, and log at most one line per second and kind.

The consumer makes a `CallFailure` for each message that failed, and passes the call to its `FailureLog`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from raymq.client.message import ReceivedMessage
from raymq.storage.errors import number_text
from raymq.storage.records.failure_reason import failure_reason

#: The logger of consumers' failures, which users know by this name.
_log = logging.getLogger("raymq.consumer")

#: At most one line of a kind is logged in this many seconds.
_LINE_SECONDS = 1.0
#: A kind that did not occur for this long is logged in full again.
_FULL_AGAIN_SECONDS = 60.0
#: How many kinds are distinguished.
_MAX_KINDS = 1_000
#: How many characters of an exception's text are used at most.
_MAX_CHARACTERS = 4_096


@dataclass(frozen=True, slots=True, eq=False)
class CallFailure:
    """Why a call failed for one of its messages.

    Attributes:
        level: the delay level of its retry: 0 by the number of retries, -1 straight to the dead letters.
        kind: failures of one kind share their lines in the log.
        reason: the text that is stored with the message, such as "ValueError: no such account".
        error: the exception that the listener raised.
    """

    level: int
    kind: str
    reason: str
    error: BaseException | None = None

    @classmethod
    def raised(cls, error: BaseException, *, with_text: bool = True) -> CallFailure:
        """Return the failure of a listener that raised `error`.

        `with_text` False keeps only the error's type as the reason.
        """
        name = type(error).__name__
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        line = "" if where is None else f" at {where.tb_frame.f_code.co_filename}:{where.tb_lineno}"
        text = _first_line(error) if with_text else ""
        return cls(0, name + line, failure_reason(f"{name}: {text}" if text else name), error)

    @classmethod
    def asked_for(cls, result: object, level: int) -> CallFailure:
        """Return the failure of a listener that returned RECONSUME_LATER or a Retry."""
        return cls(level, "asked", "the listener asked for it" if level < 0 else f"listener returned {result}")

    @classmethod
    def no_result(cls, answer: object) -> CallFailure:
        """Return the failure of a listener that returned an invalid result.

        Of the result only None and booleans are shown.
        """
        shown = repr(answer) if answer is None or isinstance(answer, bool) else f"a {type(answer).__name__}"
        reason = f"listener returned {shown}, which counts as failed; return ConsumeResult.SUCCESS"
        return cls(0, f"returned {shown}", failure_reason(reason))

    @classmethod
    def wrong_count(cls, results: int, messages: int) -> CallFailure:
        """Return the failure of a listener whose list of results has a wrong length."""
        reason = f"listener returned {results} results for {messages} messages, which counts as failed"
        return cls(0, "number of results", f"{reason}; return one result, or one per message")

    @classmethod
    def timed_out(cls, seconds: float) -> CallFailure:
        """Return the failure of a listener that did not return within its consume time-out."""
        return cls(0, "time-out", f"no answer within {number_text(seconds)} s")

    def to_dead_letters(self) -> CallFailure:
        """Return the same failure of a message that gets no further try."""
        return CallFailure(-1, self.kind, self.reason, self.error)


def _first_line(error: BaseException) -> str:
    try:
        lines = str(error)[:_MAX_CHARACTERS].strip().splitlines()
    except Exception:  # noqa: BLE001 - the user's exception class makes the text
        return ""
    return lines[0].strip() if lines else ""


@dataclass(slots=True)
class _Kind:
    """The log state of one kind of failure.

    It holds the time of the last log line, the time of the last failure, and the failures that were only counted since
    that line.
    """

    logged_at: float
    seen_at: float
    count: int = 0
    last: str = ""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One log line for a failure.

    It has a traceback if `in_full` is set, and counts `others` further failures.
    """

    in_full: bool
    others: int


class LogThrottle:
    """Decides which failures are logged.

    The first failure of a kind is logged in full, then at most one per second with a count. `clock` is monotonic
    seconds. Used by one thread at a time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kinds: dict[str, _Kind] = {}

    def admit(self, kind: str, shown: Callable[[], str] = str) -> LogLine | None:
        """Return the line for a failure of this kind, or None.

        None: the failure is only counted.

        Args:
            shown: returns the text for `overdue`, if this failure is the last one by then.
        """
        now = self._clock()
        known = self._kinds.pop(kind, None)
        if known is None or (not known.count and now - known.seen_at >= _FULL_AGAIN_SECONDS):
            line: LogLine | None = LogLine(in_full=True, others=0)
            known = _Kind(now, now)
        elif now - known.logged_at >= _LINE_SECONDS:
            line = LogLine(in_full=False, others=known.count)
            known = _Kind(now, now)
        else:
            line = None
            known.seen_at, known.count, known.last = now, known.count + 1, shown()
        self._kinds[kind] = known  # at the end, so that the kind that did not occur for longest is the first
        while len(self._kinds) > _MAX_KINDS:
            del self._kinds[next(iter(self._kinds))]
        return line

    def overdue(self, *, all_of_them: bool = False) -> list[tuple[str, int, str]]:
        """Return kind, count and last text of the kinds that may have a line now.

        They count as logged then.
        """
        now = self._clock()
        found = []
        for kind, known in self._kinds.items():
            if known.count and (all_of_them or now - known.logged_at >= _LINE_SECONDS):
                found.append((kind, known.count, known.last))
                known.logged_at, known.count, known.last = now, 0, ""
        return found


class FailureLog:
    """Logs the failed calls and the dead letters of one consumer.

    Used on the consumer's event loop.
    """

    def __init__(self, group: str, clock: Callable[[], float]) -> None:
        self._group = group
        self._throttle = LogThrottle(clock)

    def admit(self, failure: CallFailure, message: ReceivedMessage) -> LogLine | None:
        """Return the line for a failed call, or None if it is only counted.

        The caller passes the line to `write`.
        """
        return self._throttle.admit(failure.kind, lambda: f"{_place(message)}: {failure.reason}")

    def write(self, line: LogLine, failure: CallFailure, messages: list[ReceivedMessage], follows: str) -> None:
        """Log a failed call.

        Args:
            messages: the messages of the call that failed, the one of `failure` first.
            follows: what happens to them, such as "it comes again in 10 s".
        """
        more = f" and {len(messages) - 1} more of its call" if len(messages) > 1 else ""
        others = f"; {line.others} other calls failed in this way since the last line" if line.others else ""
        traceback = _of_listener(failure.error) if line.in_full and failure.error is not None else None
        _warn(
            "consumer of group %s failed on %s%s: %s; %s%s",
            self._group,
            _place(messages[0]),
            more,
            failure.reason if failure.error is None else failure_reason(_described(failure.error)),
            follows,
            others,
            exc_info=None if traceback is None else (type(failure.error), failure.error, traceback),
        )

    def dead_letter(self, message: ReceivedMessage, reason: str) -> None:
        """Log that a message went to the dead letters."""
        line = self._throttle.admit(_DEAD_LETTER, lambda: f"{_place(message)}: {reason}")
        if line is not None:
            others = f"; {line.others} others since the last line" if line.others else ""
            _warn("consumer of group %s: %s is a dead letter now: %s%s", self._group, _place(message), reason, others)

    def flush(self, *, all_of_them: bool = False) -> None:
        """Log the failures that were only counted and may have their line by now.

        To be called once a second and at the end.
        """
        for kind, count, last in self._throttle.overdue(all_of_them=all_of_them):
            if kind == _DEAD_LETTER:
                _warn("consumer of group %s: %d more dead letters, the last %s", self._group, count, last)
            else:
                _warn("consumer of group %s: %d more calls failed, the last on %s", self._group, count, last)


_DEAD_LETTER = "dead letter"


def _warn(text: str, *args: object, exc_info: Any = None) -> None:
    """Log a warning; a fault of the program's own logging must not stop the consumer."""
    with contextlib.suppress(Exception):
        _log.warning(text, *args, exc_info=exc_info)


def _described(error: BaseException) -> str:
    text = _first_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _of_listener(error: BaseException) -> TracebackType | None:
    """Return the traceback without the frames of this package that called the listener."""
    own = error.__traceback__
    while own is not None and own.tb_next is not None and own.tb_frame.f_globals.get("__name__") in _CALLERS:
        own = own.tb_next
    return own


#: The module whose frames call listeners.
_CALLERS = frozenset({"raymq.client.push.listener"})


def _place(message: Any) -> str:
    """Return a text that identifies a message.

    A message whose metadata is damaged is identified by its queue and offset only.
    """
    queue = message.queue
    place = f"{queue.broker} queue {queue.queue_id} offset {message.queue_offset}"
    try:
        of_retries = f" of {queue.topic}" if queue.topic != message.topic else ""
        tries = message.reconsume_times + 1
        which = f"message {message.message_id} of topic {message.topic}"
    except Exception:  # noqa: BLE001 - it cannot be decoded
        return f"a message of topic {queue.topic} ({place})"
    return f"{which} ({place}{of_retries}, try {tries})"
