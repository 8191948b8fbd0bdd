"""Which faults strike, when, how long, and which overlap: all drawn from one seed.

A step waits, then applies one fault, or two of different groups at once, or none. A fault names its target by role
(``leader of 2``), which resolves to a broker when it strikes. Faults take out at most one broker at a time, except
`KILL_ALL`, those of the tree and `SWAP_DIRECTORIES`, which the page caches survive, so no record may be lost then
either. Without a ZooKeeper majority nobody can be elected; without two in-sync replicas nothing is acknowledged. Both
end with the fault.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum


class Group(Enum):
    """What a fault affects: two faults at once affect different things."""

    PROCESS = "processes"
    NETWORK = "network"
    DISK = "disks"
    ZOOKEEPER = "ZooKeeper"
    ADMIN = "reassignment"
    TOPICS = "topics"
    GROUPS = "groups"
    HOSTILITY = "hostility"
    TREE = "the tree"
    CLOCK = "clocks"
    SECURITY = "security"


class Kind(Enum):
    """A fault's name, group, how often it is drawn, and the shortest and longest time until it is undone, in s.

    A session ends after 2 s: some faults are shorter, most are longer.
    """

    KILL_LEADER = ("kill leader", Group.PROCESS, 6, 0.0, 3.5)
    KILL_FOLLOWER = ("kill follower", Group.PROCESS, 4, 0.0, 3.5)
    KILL_CONTROLLER = ("kill controller", Group.PROCESS, 4, 0.0, 3.5)
    KILL_ALL = ("kill all brokers", Group.PROCESS, 2, 0.0, 1.0)
    PAUSE_LEADER = ("pause leader", Group.PROCESS, 5, 0.5, 5.0)
    PAUSE_FOLLOWER = ("pause follower", Group.PROCESS, 3, 0.5, 5.0)
    PAUSE_CONTROLLER = ("pause controller", Group.PROCESS, 4, 1.5, 5.0)
    KILL_COORDINATOR = ("kill transaction coordinator", Group.PROCESS, 4, 0.0, 3.5)
    PAUSE_COORDINATOR = ("pause transaction coordinator", Group.PROCESS, 4, 0.5, 5.0)
    STOP_LEADER = ("stop leader", Group.PROCESS, 3, 0.0, 1.0)
    ROLLING_RESTART = ("rolling restart", Group.PROCESS, 1, 0.0, 0.0)
    CUT_FOLLOWER = ("cut leader and follower", Group.NETWORK, 4, 1.0, 5.0)
    CUT_FROM_LEADER = ("cut leader to follower", Group.NETWORK, 3, 1.0, 5.0)
    CUT_TO_LEADER = ("cut follower to leader", Group.NETWORK, 3, 1.0, 5.0)
    CUT_ZOOKEEPER = ("cut leader and ZooKeeper", Group.NETWORK, 4, 1.0, 5.0)
    CUT_FROM_ZOOKEEPER = ("cut ZooKeeper to leader", Group.NETWORK, 3, 1.0, 5.0)
    CUT_CONTROLLER = ("cut controller and ZooKeeper", Group.NETWORK, 3, 1.0, 5.0)
    ISOLATE_LEADER = ("isolate leader", Group.NETWORK, 4, 1.0, 5.0)
    REJECT_LEADER = ("reject brokers at leader", Group.NETWORK, 4, 0.5, 5.0)
    REJECT_CONTROLLER = ("reject brokers at controller", Group.NETWORK, 3, 0.5, 5.0)
    ISOLATE_COORDINATOR = ("isolate transaction coordinator", Group.NETWORK, 4, 1.0, 5.0)
    FULL_DISK = ("full disk", Group.DISK, 4, 1.0, 4.0)
    WIPE_DISK = ("wipe disk", Group.DISK, 2, 0.0, 2.0)
    RESTORE_DISK = ("restore older disk", Group.DISK, 2, 1.0, 3.0)
    REORDER_DIRECTORIES = ("reorder log directories", Group.DISK, 2, 0.0, 0.5)
    EXCHANGE_DIRECTORIES = ("exchange log directories", Group.DISK, 1, 0.0, 0.5)
    REMOVE_DIRECTORY = ("remove log directory", Group.DISK, 2, 1.0, 4.0)
    ADD_DIRECTORY = ("add log directory", Group.DISK, 1, 0.0, 0.5)
    SWAP_DIRECTORIES = ("swap log directories of brokers", Group.DISK, 2, 0.0, 0.5)
    REMOVE_FOLDER = ("remove partition folder", Group.DISK, 2, 0.5, 2.0)
    KILL_ZOOKEEPER = ("kill a ZooKeeper server", Group.ZOOKEEPER, 4, 0.0, 3.0)
    PAUSE_ZOOKEEPER = ("pause a ZooKeeper server", Group.ZOOKEEPER, 3, 1.0, 4.0)
    ZOOKEEPER_AWAY = ("ZooKeeper away", Group.ZOOKEEPER, 2, 2.0, 6.0)
    ZOOKEEPER_LONG_AWAY = ("ZooKeeper away for long", Group.ZOOKEEPER, 0, 60.0, 60.0)
    MOVE_REPLICAS = ("move replicas", Group.ADMIN, 4, 0.0, 2.0)
    MOVE_LEADERS = ("move leaders", Group.ADMIN, 3, 0.0, 1.0)
    MOVE_COORDINATORS = ("move coordinators", Group.ADMIN, 4, 0.0, 1.0)
    MAKE_ANEW = ("make topic anew", Group.TOPICS, 6, 0.0, 1.0)
    COMPACTED_ANEW = ("make compacted topic anew", Group.TOPICS, 3, 0.0, 1.0)
    DELETE_RECORDS = ("delete records", Group.TOPICS, 5, 0.0, 0.5)
    DELETE_LISTED = ("delete records of transactions", Group.TOPICS, 4, 0.0, 0.5)
    ADD_PARTITION = ("add partition", Group.TOPICS, 2, 0.0, 0.5)
    ALTER_CONFIG = ("alter configuration", Group.TOPICS, 7, 0.5, 3.0)
    DELETE_GROUP = ("delete group", Group.GROUPS, 3, 0.0, 0.5)
    RESET_GROUP = ("reset group", Group.GROUPS, 3, 0.0, 0.5)
    ODD_BATCHES = ("odd batches", Group.HOSTILITY, 4, 1.0, 3.0)
    FORGED_REQUESTS = ("forged requests", Group.HOSTILITY, 4, 1.0, 3.0)
    WRONG_PATH = ("wrong path in ZooKeeper", Group.TREE, 2, 0.0, 1.0)
    EMPTY_ZOOKEEPER = ("empty ZooKeeper", Group.TREE, 2, 1.0, 3.0)
    FOREIGN_ZOOKEEPER = ("another cluster's ZooKeeper", Group.TREE, 2, 1.0, 3.0)
    RESTORE_ZOOKEEPER = ("restore older ZooKeeper", Group.TREE, 3, 1.0, 4.0)
    RESTORE_ZOOKEEPER_LIVE = ("restore older ZooKeeper below brokers", Group.TREE, 3, 1.0, 4.0)
    CLOCK_AHEAD = ("clock an hour ahead", Group.CLOCK, 3, 1.0, 6.0)
    CLOCK_BEHIND = ("clock an hour behind", Group.CLOCK, 3, 1.0, 6.0)
    ROTATE_CERTIFICATES = ("rotate certificates", Group.SECURITY, 3, 0.5, 3.0)
    ROTATE_AUTHORITY = ("rotate authority", Group.SECURITY, 3, 0.5, 3.0)
    CHANGE_PASSWORD = ("change password", Group.SECURITY, 3, 0.5, 3.0)
    REVOKE_RULES = ("revoke rules", Group.SECURITY, 4, 1.0, 4.0)
    THROTTLE = ("throttle user", Group.SECURITY, 3, 2.0, 5.0)

    def __init__(self, text: str, group: Group, weight: int, shortest: float, longest: float) -> None:
        self.text = text
        self.group = group
        self.weight = weight
        self.shortest = shortest
        self.longest = longest


@dataclass(frozen=True, slots=True)
class Fault:
    """The kind, a number from which the kind picks a partition, broker or server, and the duration."""

    kind: Kind
    target: int
    seconds: float

    def __str__(self) -> str:
        return self.kind.text


@dataclass(frozen=True, slots=True)
class Step:
    """Wait this many seconds, then apply these faults at once. After a calm step the cluster must become whole."""

    wait: float
    faults: tuple[Fault, ...]
    calm: bool = False


WRITING_THE_TREE = (Group.ZOOKEEPER, Group.ADMIN, Group.TOPICS, Group.SECURITY)
"""What these change, a restored tree forgets: the fault itself does so, and knows what the tree has to be then."""
LONG_RUN = 100
"""Runs of at least this many faults lose ZooKeeper for a whole minute once."""
CALM_EVERY = 8
QUIET = 0.05
TWICE = 0.3


def draw(seed: int, count: int, kinds: Collection[Kind]) -> list[Step]:
    """Steps with ``count`` faults of these kinds in total; if ``count`` suffices, each kind at least once."""
    drawn = random.Random(seed)
    usual = [kind for kind in Kind if kind in kinds and kind.weight]
    deck: list[Kind] = []
    steps: list[Step] = []
    left = count
    long_at = count // 2 if count >= LONG_RUN and Kind.ZOOKEEPER_LONG_AWAY in kinds else None
    while left > 0:
        if drawn.random() < QUIET:
            steps.append(Step(round(drawn.uniform(1.0, 3.0), 2), ()))
            continue
        if long_at is not None and left <= long_at:
            long_at = None
            first = Kind.ZOOKEEPER_LONG_AWAY
        else:
            first = _deal(drawn, deck, usual)
        faults = [_fault(drawn, first)]
        others = [kind for kind in usual if may_meet(first, kind)]
        if left > 1 and others and drawn.random() < TWICE:
            second = drawn.choices(others, [kind.weight for kind in others])[0]
            if second in deck:
                deck.remove(second)
            faults.append(_fault(drawn, second))
        left -= len(faults)
        calm = len(steps) % CALM_EVERY == CALM_EVERY - 1
        steps.append(Step(round(drawn.uniform(0.2, 2.0), 2), tuple(faults), calm))
    return steps


def may_meet(one: Kind, other: Kind) -> bool:
    """Whether two faults may overlap: they differ in group, at most one takes a broker out, and no change gets lost."""
    taking = (Group.PROCESS, Group.NETWORK, Group.DISK, Group.TREE)
    if one.group in taking and other.group in taking:
        return False
    for this, that in ((one, other), (other, one)):
        if this.group is Group.TREE and that.group in WRITING_THE_TREE:
            return False
    return one.group is not other.group


def _deal(drawn: random.Random, deck: list[Kind], usual: Sequence[Kind]) -> Kind:
    """The next card of a shuffled deck, which has every kind once and some more by weight."""
    if not deck:
        deck += usual
        deck += drawn.choices(usual, [kind.weight for kind in usual], k=len(usual))
        drawn.shuffle(deck)
    return deck.pop()


def _fault(drawn: random.Random, kind: Kind) -> Fault:
    return Fault(kind, drawn.randrange(1 << 16), round(drawn.uniform(kind.shortest, kind.longest), 2))
