"""Copies the data of a ZooKeeper, and restores it from the copy."""

from __future__ import annotations

import shutil
from pathlib import Path

from millstream_harness.zookeeper import ZooKeeperProcess


def copy(zookeeper: ZooKeeperProcess, name: str = "copy") -> Path:
    """It restarts."""
    zookeeper.stop(20)
    target = zookeeper.folder / name
    shutil.copytree(zookeeper.data, target)
    zookeeper.start()
    return target


def restore(zookeeper: ZooKeeperProcess, copied: Path) -> None:
    zookeeper.kill()
    shutil.rmtree(zookeeper.data)
    shutil.copytree(copied, zookeeper.data)
    zookeeper.start()
