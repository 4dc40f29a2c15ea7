"""Read the console's token from its file, or make both."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Final

from raymq.client import InvalidInput

_LEAST_CHARACTERS: Final = 16
_MOST_CHARACTERS: Final = 4_096


def read_or_make_token(path: Path) -> str:
    """Return the token in a file.

    If there is no file, make one that only its user can read.

    Raises:
        InvalidInput: others can read the file, or its token is too short; or it cannot be read or written.
    """
    try:
        return _made(path)
    except FileExistsError:
        return _read(path)
    except OSError as error:
        raise InvalidInput("token_file", "a file that can be written", f"{path}: {error.strerror}") from error


def _made(path: Path) -> str:
    token = secrets.token_urlsafe(32)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(token + "\n")
    return token


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(_MOST_CHARACTERS + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("token_file", "a file that can be read", f"{path}: {error}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidInput("token_file", "a file that only its user can read", str(path), remedy=f"chmod 600 {path}")
    if not _LEAST_CHARACTERS <= len(token) <= _MOST_CHARACTERS:
        limit = f"a token of {_LEAST_CHARACTERS} to {_MOST_CHARACTERS} characters"
        raise InvalidInput("token_file", limit, f"{len(token)} in {path}", remedy="delete the file: a new one is made")
    return token
