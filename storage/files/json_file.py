"""Read and write RocketMQ's configuration files: JSON, with a backup beside it as `.bak`.

The backup holds the content before the last write. RocketMQ's writer leaves integer keys unquoted
(`{"offsetTable":{1:17}}`), which strict JSON forbids; RocketMQ's reader also accepts quoted keys. This module therefore
reads both and writes quoted keys.
"""

from __future__ import annotations

import json
import logging
import re
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from raymq.storage.errors import StoreCorrupt
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil

_log = logging.getLogger(__name__)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_STRING_OR_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)(?=\s*:)', re.DOTALL)


T = TypeVar("T")

#: The end of an object with a checksum. RocketMQ ignores the field when it reads, and does not write it.
_SEAL = re.compile(rb',"raymqCrc":([0-9]{1,10})\}\Z')
#: The same with any name: a bit of the name may have changed.
_NUMBER_AT_END = re.compile(rb',"[^"]*":([0-9]{1,10})\}\Z')

#: No table nests deeper. Deeper values are refused when read, because writing them later on a deeper stack would fail.
_DEEPEST: Final = 64
#: Errors raised by reading a value of an unexpected form: a list for a number, 1e999, a thousand brackets.
DECODE_ERRORS: Final = (
    *(ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError, msgspec.ValidationError),
)


def parse(text: str, *, within: int = 0) -> dict[str, Any]:
    """Parse the JSON object in `text`; integer keys may be unquoted.

    Keys are returned as strings. Raise ValueError if `text` is not a JSON object.

    Args:
        within: the number of objects around this one in its file; they count towards the nesting limit.
    """
    levels = _DEEPEST - within
    try:
        value = _value_of(text, levels)
    except ValueError:
        quoted = _STRING_OR_BARE_KEY.sub(lambda m: m[0] if m[2] is None else f'{m[1]}"{m[2]}"', text)
        value = _value_of(quoted, levels)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - the text is at fault, not its type
    return value


def _value_of(text: str, levels: int) -> Any:
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("values are nested too deep") from None
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        inner = [within for each in level for within in (each.values() if isinstance(each, dict) else each)]
        level = [each for each in inner if isinstance(each, dict | list)]
        if not level:
            return value
    raise ValueError("values are nested too deep")


def read(text: str, interpret: Callable[[dict[str, Any]], T]) -> T:
    """Return the result of `interpret` for the JSON object in `text`.

    Raises:
        ValueError: it is not such an object, its checksum is wrong, or `interpret` finds an unexpected form.
    """
    if not is_as_written(text.encode("utf-8", "surrogatepass")):
        raise ValueError("wrong checksum: if the file was changed by hand, remove raymqCrc from it")
    value = parse(text)
    try:
        return interpret(value)
    except DECODE_ERRORS as error:
        raise ValueError(f"malformed: {error!r}") from error


def load_as(path: Path, interpret: Callable[[dict[str, Any]], T]) -> T:
    """Return the result of `interpret` for the object in `path`, or in its `.bak`.

    The `.bak`, which is older, is used if `path` is missing or broken; a warning is logged then. If neither file
    exists, `interpret` gets {}.

    Raises:
        StoreCorrupt: the existing files are broken, or have another form; with what to do.
        StoreBusy, StoreFailed: the file cannot be read now; its older `.bak` is not used instead.
    """
    problem: StoreCorrupt | None = None
    for candidate in (path, backup_path_of(path)):
        try:
            text = fileutil.read_whole(candidate).decode("utf-8")
            if not text.strip():
                raise ValueError("empty")
            content = read(text, interpret)
        except FileNotFoundError:
            continue
        except ValueError as error:
            where, reason = getattr(error, "pos", 0), f"not readable: {error}"
            problem = problem or StoreCorrupt(str(candidate), where, reason, remedy=remedy_for(path))
        else:
            if candidate != path:
                reason = "missing" if problem is None else problem.reason
                _log.warning("%s: %s; its content before the last change is used, from %s", path, reason, candidate)
            return content
    if problem is not None:
        raise problem
    return interpret({})


def load(path: Path) -> dict[str, Any]:
    """Return the object in `path`, whatever it contains; raise as `load_as`."""
    return load_as(path, lambda raw: raw)


def backup_path_of(path: Path) -> Path:
    """Return the path of the backup, which holds the content before the last write."""
    return path.with_name(path.name + ".bak")


def remedy_for(path: Path) -> str:
    """Return the advice for a file that cannot be read.

    For files of a store directory it names a repair command; other files must be restored by their owner.
    """
    if path.parent.name in ("config", "raymq"):
        return f"`raymq store repair {path.parent.parent} --dry-run` shows what can be rebuilt"
    return "put back a copy of it, or remove it"


def encode(value: Any) -> str:
    """Encode a value as JSON on one line, the only form of json's fast encoder."""
    return _ENCODER.encode(value)


def with_checksum(content: bytes) -> bytes:
    """Add a checksum to an object in JSON.

    Without it, a changed digit would be read unnoticed.
    """
    return b'%b,"raymqCrc":%d}' % (content[:-1], zlib.crc32(content))


def is_as_written(content: bytes) -> bool:
    """Return True if an object's checksum is right, or if it has none."""
    seal = _SEAL.search(content)
    return seal is None or _is_sealed_by(seal, content)


def ends_with_checksum(content: bytes) -> bool:
    """Return True if an object ends with its right checksum, whatever its name."""
    seal = _NUMBER_AT_END.search(content)
    return seal is not None and _is_sealed_by(seal, content)


def _is_sealed_by(seal: re.Match[bytes], content: bytes) -> bool:
    return zlib.crc32(content[: seal.start()] + b"}") == int(seal[1])


def save(path: Path, content: Mapping[str, Any], interpret: Callable[[dict[str, Any]], object]) -> None:
    """Write `content` durably and keep the previous content as `.bak`.

    If the previous content cannot be read, the existing `.bak` stays. The first write also makes a `.bak` with the same
    content, so that a broker can start even if the file is found empty later.

    Args:
        interpret: the function that reads the file (`load_as`). Content for which it raises counts as broken.

    Raises:
        StoreFull, StoreFailed: nothing was written; the previous content stays.
    """
    save_encoded(path, encode(content).encode(), interpret)


def save_encoded(
    path: Path, content: bytes, interpret: Callable[[dict[str, Any]], object], last_saved: bytes | None = None
) -> None:
    """Save content that is JSON already, as `save` does.

    Args:
        last_saved: the content that the caller wrote last. If the file still has it, the content is known to be whole
            without parsing it.
    """
    fileutil.make_folder(path.parent)
    try:
        before = fileutil.read_whole(path)
    except FileNotFoundError:
        before = b""
    spare = backup_path_of(path)
    is_whole = bool(before) and (before == last_saved or _is_readable(before, interpret))
    if is_whole or not spare.exists():
        failpoint("settings.before_backup")
        fileutil.replace(spare, before if is_whole else content)
    failpoint("settings.before_replace")
    fileutil.replace(path, content)


def _is_readable(content: bytes, interpret: Callable[[dict[str, Any]], object]) -> bool:
    try:
        read(content.decode("utf-8"), interpret)
    except ValueError:
        return False
    return True


def foreign_fields(raw: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `raw` that `written` lacks or has with another value.

    These are settings of RocketMQ's that RayMQ does not use. They are kept so that a RocketMQ broker finds them again.
    """
    return {name: value for name, value in raw.items() if name not in written or written[name] != value}


@dataclass(frozen=True, slots=True)
class DataVersion:
    """RocketMQ's version of a table: how often and when (ms) it changed."""

    counter: int = 0
    timestamp_ms: int = 0
    state_version: int = 0

    @classmethod
    def from_json(cls, raw: Mapping[str, Any] | None) -> DataVersion:
        """Create a version from RocketMQ's object; zeros without one."""
        raw = raw or {}
        return cls(int(raw.get("counter", 0)), int(raw.get("timestamp", 0)), int(raw.get("stateVersion", 0)))

    def to_json(self) -> dict[str, int]:
        """Return RocketMQ's object."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp_ms}

    def next(self) -> DataVersion:
        """Return the version after one more change, made now."""
        return DataVersion(self.counter + 1, int(time.time() * 1000), self.state_version)
