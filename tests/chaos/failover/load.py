"""Load a cluster until the command to end, and record all answers.

    load.py NAME_SERVERS HISTORY SEED PAUSE

It creates its topics, prints a line of JSON with its counts every quarter of a second, and reads commands from its
standard input: "quiet" ends the senders; "drain SECONDS" waits until every group has all acknowledged messages, at most
for so long, and ends the program, as the end of the input does.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from raymq.client import Admin, Connection, RayMQError

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # run as a program: the tests' folder is not installed

from tests.chaos.failover.readers import Readers
from tests.chaos.failover.recorded import HistoryFile
from tests.chaos.failover.senders import BATCHED, DELAYED, NUMBERED, ORDERED, POPPED, TOPICS, Senders, Tally
from tests.polling import poll_until

_REPORT_SECONDS = 0.25
_BEGIN_SECONDS = 60.0


def _make_topics(mq: Connection) -> bool:
    try:
        for topic in TOPICS:
            Admin(mq).create_topic(topic, queues=2)
    except RayMQError:
        return False
    return True


def _drained(tally: Tally, readers: Readers) -> bool:
    wanted = {
        "chaos-pop": tally.acknowledged[POPPED],
        "chaos-push": tally.acknowledged[BATCHED],
        "chaos-pull": tally.acknowledged[ORDERED] | tally.acknowledged[NUMBERED] | tally.acknowledged[DELAYED],
    }
    return all(numbers <= set(readers.done[group]) for group, numbers in wanted.items())


def main(name_servers: str, path: str, seed: int, pause: float) -> None:
    def connect() -> Connection:
        return Connection(name_servers.split(";"))

    history, tally = HistoryFile(Path(path)), Tally()
    mq = connect()
    poll_until(lambda: _make_topics(mq), _BEGIN_SECONDS, "the topics are made")
    mq.close()
    senders = Senders(connect, history, tally, pause=pause, seed=seed)
    readers = Readers(connect, history, seed=seed)
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(_REPORT_SECONDS):
            counts = dict(tally.outcomes) | {group: len(done) for group, done in list(readers.done.items())}
            print(json.dumps(counts | {"last_ok": dict(tally.last_ok), "troubles": readers.troubles[-3:]}), flush=True)

    senders.start()
    readers.start()
    threading.Thread(target=report, daemon=True).start()
    quiet = False
    for line in sys.stdin:
        match line.split():
            case ["quiet"]:
                senders.stop()
                quiet = True
                print(json.dumps({"quiet": True}), flush=True)
            case ["drain", seconds]:
                end = time.monotonic() + float(seconds)
                while not _drained(tally, readers) and time.monotonic() < end:
                    time.sleep(0.1)
                break
    if not quiet:
        senders.stop()
    ended.set()
    readers.stop()
    history.close()
    Path(path).with_suffix(".troubles").write_text("\n".join(readers.troubles), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
