"""Log directories as a broker uses them, without the broker: started, written to, left in different ways."""

from __future__ import annotations

from pathlib import Path

from millstream_broker.log.batch import Record, build_batch
from millstream_broker.log.config import LogConfig
from millstream_broker.log.directory import LogDirError
from millstream_broker.log.log import Log
from millstream_broker.log.manager import LogManager

NOW = 1_700_000_000_000


def start(
    *dirs: Path, broker_id: int = 1, cluster: str = "c1", config: LogConfig | None = None
) -> LogManager:
    manager = LogManager(dirs, config)
    try:
        manager.lock()
        manager.identify(broker_id, cluster)
        manager.start()
    except LogDirError:
        manager.unlock()
        raise
    return manager


def send(log: Log, count: int = 1) -> None:
    for _ in range(count):
        log.append(build_batch([Record(b"k", b"v", NOW)]), leader_epoch=0, now_ms=NOW)


def kill(manager: LogManager) -> None:
    """Leave everything as a process does that is killed: nothing written, the locks gone."""
    for log in manager:
        log.close(clean=False)
    manager.unlock()


def lose_power(*dirs: Path) -> None:
    """What was written is there, but nobody knows that."""
    for path in dirs:
        (path / ".boot-id").write_text("another boot")
