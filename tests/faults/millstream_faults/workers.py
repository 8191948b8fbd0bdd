"""The clients, each in its own process; each writes every response to its history.

    python -m millstream_faults.workers ROLE NAME HISTORY BOOTSTRAP TOPIC TOPIC_ID PARTITIONS

writer        librdkafka, idempotent: numbered records to every partition in turn
aiowriter     the same with aiokafka
member        librdkafka in the group: reads, and commits its position
reader        librdkafka: reads every partition from start to end
rereader      librdkafka: reads short stretches anywhere, again and again
watcher       requests the group's committed offsets all the time
visitor       our own client: reads recreated topics, and keeps a position in one of them
listwriter    librdkafka in transactions: appends values to several lists, and reads them
newlistwriter our own client: the same in transactions of version 2
copier        librdkafka in transactions: copies lists, with its position, as a member of a group
listreader    librdkafka: reads lists from start to end, at one isolation

SIGTERM ends them: writers wait for open requests, readers read to the present end.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from .newer import NewerTransactor
from .probe import Known
from .readers import Member, Reader, Rereader, Watcher
from .transactors import Copier, ListReader, Transactor
from .visitor import Visitor
from .worker import Worker
from .writers import AioWriter, Writer

ROLES: Mapping[str, Callable[[str, Path, str, str, Known], Worker]] = {
    "writer": Writer,
    "aiowriter": AioWriter,
    "member": Member,
    "reader": Reader,
    "rereader": Rereader,
    "watcher": Watcher,
    "visitor": Visitor,
    "listwriter": Transactor,
    "newlistwriter": NewerTransactor,
    "copier": Copier,
    "listreader": ListReader,
}


def main() -> None:
    role, name, history, bootstrap, topic, identity, partitions = sys.argv[1:]
    worker = ROLES[role](name, Path(history), bootstrap, topic, Known(identity, int(partitions)))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: worker.ending.set())
    try:
        worker.run()
    except Exception as error:
        worker.trouble(f"ended with {error!r}")
        raise
    finally:
        worker.history.close()


if __name__ == "__main__":
    main()
