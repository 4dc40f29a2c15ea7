"""The format of log lines of the command's processes: the option --log-format."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final, Literal

from raymq.cluster.shell_remedies import in_shell_words

LogFormat = Literal["text", "json"]
#: The environment variable that sets the format of this process, and of the actors that it creates.
FORMAT_VARIABLE: Final = "RAYMQ_LOG_FORMAT"

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TextLog(logging.Formatter):
    """A formatter that replaces Python calls in the library's log lines with shell commands."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """Return one record as text, with a traceback if it has one."""
        text = super().format(record)
        return in_shell_words(text) if record.name.startswith("raymq.") else text


class JsonLog(logging.Formatter):
    """A formatter that makes one JSON object per line.

    Its fields: time, level, logger, message, and exception if there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return one record as a JSON object without line breaks."""
        message = record.getMessage()
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": in_shell_words(message) if record.name.startswith("raymq.") else message,
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=True)


def formatter(log_format: LogFormat) -> logging.Formatter:
    """Return the formatter of that name."""
    return JsonLog() if log_format == "json" else TextLog()
