"""Whom a fault strikes: roles, such as the leader of a partition, which resolve to brokers when it strikes."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

from millstream_harness.cluster import SESSION_MS
from millstream_harness.zookeeper import ZooKeeperProcess

from .lab import COORDINATOR_PARTITIONS, TRANSACTIONS, Lab, Watch
from .plan import Fault
from .topics import ANEW, COMPACTED, LISTS, STEADY

WHOLE_S = 240.0
"""Limit of what a fault waits for: the machine may be busy. The promise is the run's own."""
STRUCK = (STEADY, LISTS, ANEW, COMPACTED)
"""The topics whose leaders are struck."""


class NothingToStrikeError(Exception):
    """Nobody holds that role just now: the fault does not happen."""


class Roles:
    """A cluster, and who does what in it now."""

    def __init__(self, lab: Lab, watch: Watch) -> None:
        self.lab, self.watch = lab, watch

    def partition(self, fault: Fault) -> tuple[str, int]:
        """An existing topic and one of its partitions."""
        topics = self.lab.administration.topics
        name = STRUCK[fault.target // 64 % len(STRUCK)]
        name = name if name in topics else STEADY
        return name, fault.target % topics[name].partitions

    def leader(self, fault: Fault) -> int:
        name, partition = self.partition(fault)
        known = self.lab.administration.topics.get(name)
        return _somebody(self.watch.await_leader((known.id if known else "", partition)), "leads")

    def follower(self, fault: Fault) -> int:
        leader = self.leader(fault)
        return random.Random(fault.target).choice([one for one in self.lab.brokers if one != leader])

    def controller(self, _: Fault) -> int:
        return _somebody(self.watch.controller(), "is the controller")

    def coordinator(self, fault: Fault) -> int:
        """The broker that coordinates some of the transactions."""
        identity = self.watch.identities.get(TRANSACTIONS, "")
        place = identity, fault.target % COORDINATOR_PARTITIONS
        return _somebody(self.watch.await_leader(place), "coordinates transactions")

    def server(self, fault: Fault) -> ZooKeeperProcess:
        return self.lab.servers[fault.target % len(self.lab.servers)]

    def await_whole(self) -> None:
        """Wait twice, a session timeout apart: the session of a broker that was cut off may only now expire."""
        for pause_s in (SESSION_MS / 1000, 0.0):
            if not self.watch.await_whole(WHOLE_S):
                raise NothingToStrikeError("not everybody has everything")
            time.sleep(pause_s)


def empty(folder: Path) -> None:
    """Delete everything in the folder."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _somebody(number: int | None, does: str) -> int:
    if number is None:
        raise NothingToStrikeError(f"nobody {does}")
    return number
