"""Log directories used as by a broker, without the broker: started, written to, left in different ways."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millstream_broker.log.config import LogConfig
from millstream_broker.log.directory import LogDirError
from millstream_broker.log.log import Log
from millstream_broker.log.manager import LogManager
from millstream_kafka.batch import Record, build_batch

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
    """Leave everything as a killed process does: nothing written, the locks released."""
    for log in manager:
        log.close(clean=False)
    manager.unlock()


def lose_power(*dirs: Path) -> None:
    """The writes survived, but nobody knows that."""
    for path in dirs:
        (path / ".boot-id").write_text("another boot")


@contextmanager
def full_disk() -> Iterator[None]:
    """No write succeeds, as on a full disk (EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def block(path: Path) -> None:
    """Make the atomic write of a file fail, as on a broken disk: a folder has its name."""
    path.with_name(path.name + ".tmp").mkdir()


def blocked(manager: LogManager, name: str) -> None:
    for home in manager.dirs:
        block(home.path / name)
