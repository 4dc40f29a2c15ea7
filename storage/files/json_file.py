"""A configuration file as RocketMQ keeps it: JSON, with the content before the last write beside it as `.bak`.

RocketMQ's writer leaves integer keys unquoted (`{"offsetTable":{1:17}}`), which strict JSON forbids; it reads quoted
ones as well. So we read both and write quoted ones.
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

from raymq.storage.errors import StoreCorrupt
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil

_log = logging.getLogger(__name__)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_STRING_OR_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)(?=\s*:)', re.DOTALL)


T = TypeVar("T")

#: What stands last in an object with a checksum. RocketMQ passes over it, and leaves it out of what it writes.
_SEAL = re.compile(rb',"raymqCrc":([0-9]{1,10})\}\Z')

#: No table nests deeper. What would is refused where it is read: later, on a fuller stack, it could not be written.
_DEEPEST: Final = 64
#: What reading a value raises that has another form than was written: a list for a number, 1e999, a thousand brackets.
ANOTHER_FORM: Final = (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError)


def parse(text: str, *, within: int = 0) -> dict[str, Any]:
    """The JSON object in `text`, integer keys quoted or not (they arrive as strings); ValueError if it is none.

    Args:
        within: so many objects are around it in its file, and count for how deep that is.
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
    """What `interpret` makes of the JSON object in `text`.

    Raises:
        ValueError: it is no such object, or `interpret` finds another form than it knows.
    """
    if not _is_as_written(text.encode("utf-8", "surrogatepass")):
        raise ValueError("its checksum is another one: if it was changed by hand, take raymqCrc out of it")
    value = parse(text)
    try:
        return interpret(value)
    except ANOTHER_FORM as error:
        raise ValueError(f"of another form: {error!r}") from error


def load_as(path: Path, interpret: Callable[[dict[str, Any]], T]) -> T:
    """What `interpret` makes of the object in `path`, or in its `.bak` if that is missing or broken; of {} if neither
    exists. That a `.bak` is taken, which is older, the log tells.

    Raises:
        StoreCorrupt: what exists is broken, or has another form; with what to do.
        StoreBusy, StoreFailed: it cannot be read now; its `.bak`, which is older, does not stand for it.
    """
    problem: StoreCorrupt | None = None
    for candidate in (path, spare_of(path)):
        try:
            text = fileutil.read_whole(candidate).decode("utf-8")
            if not text.strip():
                raise ValueError("empty")
            made = read(text, interpret)
        except FileNotFoundError:
            continue
        except ValueError as error:
            where, reason = getattr(error, "pos", 0), f"not readable: {error}"
            problem = problem or StoreCorrupt(str(candidate), where, reason, remedy=remedy_for(path))
        else:
            if candidate != path:
                reason = "missing" if problem is None else problem.reason
                _log.warning("%s: %s; what it said before its last change is taken, from %s", path, reason, candidate)
            return made
    if problem is not None:
        raise problem
    return interpret({})


def load(path: Path) -> dict[str, Any]:
    """The object itself, whatever is in it; raises as `load_as`."""
    return load_as(path, lambda raw: raw)


def spare_of(path: Path) -> Path:
    """Where the content before the last write is kept."""
    return path.with_name(path.name + ".bak")


def remedy_for(path: Path) -> str:
    """What to do where a file of a store directory cannot be read; for others that its owner may restore it."""
    if path.parent.name in ("config", "raymq"):
        return f"`raymq store repair {path.parent.parent} --dry-run` says what can be made anew"
    return "put back a copy of it, or remove it"


def encode(value: Any) -> str:
    """A value as JSON of one line. json's fast encoder makes no other."""
    return _ENCODER.encode(value)


def sealed(content: bytes) -> bytes:
    """An object, as JSON, with its checksum: a digit that has changed would be read as it stands."""
    return b'%b,"raymqCrc":%d}' % (content[:-1], zlib.crc32(content))


def _is_as_written(content: bytes) -> bool:
    """Whether an object has the checksum that it says, if it says one."""
    seal = _SEAL.search(content)
    return seal is None or zlib.crc32(content[: seal.start()] + b"}") == int(seal[1])


def save(path: Path, content: Mapping[str, Any], interpret: Callable[[dict[str, Any]], object]) -> None:
    """Write `content` durably and keep what was there as `.bak`, unless that cannot be read: then the `.bak` stays.

    Args:
        interpret: what reads the file (`load_as`). What it raises for is as good as broken.

    With the first content there is a `.bak` of it, too: a file that is found empty later keeps no broker down.

    Raises:
        StoreFull, StoreFailed: not written; what was there stays.
    """
    save_encoded(path, encode(content).encode(), interpret)


def save_encoded(
    path: Path, content: bytes, interpret: Callable[[dict[str, Any]], object], last_saved: bytes | None = None
) -> None:
    """`save` of what is JSON already.

    Args:
        last_saved: what the caller wrote last. If it is what is there, it is whole, and needs not be read to know it.
    """
    fileutil.make_folder(path.parent)
    try:
        before = fileutil.read_whole(path)
    except FileNotFoundError:
        before = b""
    spare = spare_of(path)
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


def unknown(raw: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """What `raw` says and `written` does not, or says otherwise: settings of RocketMQ's that we have no use for.

    They are kept, so that a broker of RocketMQ's finds them again.
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
        """From RocketMQ's object; zeros without."""
        raw = raw or {}
        return cls(int(raw.get("counter", 0)), int(raw.get("timestamp", 0)), int(raw.get("stateVersion", 0)))

    def to_json(self) -> dict[str, int]:
        """RocketMQ's object."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp_ms}

    def next(self) -> DataVersion:
        """After one more change, now."""
        return DataVersion(self.counter + 1, int(time.time() * 1000), self.state_version)
