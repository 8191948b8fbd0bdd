"""Log directories that move: reordered, exchanged, removed and put back, added, swapped between brokers."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from .lab import LabBroker
from .plan import Fault
from .roles import NothingToStrikeError, Roles

MOST_DIRECTORIES = 6
ANOTHER_OWNER = "belongs to broker"
"""What a broker logs that does not start with another one's directory."""


@contextlib.contextmanager
def reordered(roles: Roles, fault: Fault) -> Iterator[str]:
    """A broker restarts with the same `log.dirs` in another order."""
    number = roles.leader(fault)
    broker = roles.lab.brokers[number]
    order = [*broker.directories[1:], broker.directories[0]]
    with _restarted(broker, fault, order):
        yield f"broker {number}: {_names(order)}"


@contextlib.contextmanager
def exchanged(roles: Roles, fault: Fault) -> Iterator[str]:
    """A broker restarts after two of its directories got each other's names, as disks that are mounted wrongly."""
    number = roles.leader(fault)
    broker = roles.lab.brokers[number]
    one, other = random.Random(fault.target).sample(broker.directories, 2)
    end(broker, fault)
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    try:
        yield f"broker {number}: {_names([one, other])}"
    finally:
        broker.start()


@contextlib.contextmanager
def removed(roles: Roles, fault: Fault) -> Iterator[str]:
    """A broker restarts without one of its directories, and again with it. All others must be in sync before."""
    roles.await_whole()
    number = roles.leader(fault)
    broker = roles.lab.brokers[number]
    every = list(broker.directories)
    left = random.Random(fault.target).choice(every)
    with _restarted(broker, fault, [one for one in every if one != left]):
        pass
    try:
        yield f"broker {number}: {left.name}"
    finally:
        with _restarted(broker, fault, every):
            pass


@contextlib.contextmanager
def added(roles: Roles, fault: Fault) -> Iterator[str]:
    """A broker restarts with one more directory, which stays; first or last."""
    number = roles.leader(fault)
    broker = roles.lab.brokers[number]
    if len(broker.directories) >= MOST_DIRECTORIES:
        raise NothingToStrikeError(f"broker {number} has {MOST_DIRECTORIES} log directories")
    new = broker.data / f"d{len(broker.directories) + 1}"
    every = [new, *broker.directories] if fault.target % 2 else [*broker.directories, new]
    with _restarted(broker, fault, every):
        yield f"broker {number}: {_names(every)}"


@contextlib.contextmanager
def swapped(roles: Roles, fault: Fault) -> Iterator[str]:
    """Two brokers have one or all of each other's directories: neither starts until each has its own."""
    drawn = random.Random(fault.target)
    numbers = drawn.sample(sorted(roles.lab.brokers), 2)
    one, other = (roles.lab.brokers[number] for number in numbers)
    count = drawn.choice((1, min(len(one.directories), len(other.directories))))
    pairs = list(zip(one.directories[:count], other.directories[:count], strict=True))
    for broker in (one, other):
        end(broker, fault)
    try:
        _swap(pairs)
        for broker in (one, other):
            broker.refuse(ANOTHER_OWNER)
        yield f"brokers {numbers}: {count} directories"
    finally:
        _swap(pairs)
        roles.lab.launch([one, other])


@contextlib.contextmanager
def folder_removed(roles: Roles, fault: Fault) -> Iterator[str]:
    """A broker restarts without a partition's folder. All others must be in sync before."""
    roles.await_whole()
    name, partition = roles.partition(fault)
    number = roles.leader(fault)
    broker = roles.lab.brokers[number]
    found = [
        one / f"{name}-{partition}" for one in broker.directories if (one / f"{name}-{partition}").exists()
    ]
    if not found:
        raise NothingToStrikeError(f"broker {number} does not have {name}-{partition}")
    broker.kill()
    for folder in found:
        shutil.rmtree(folder)
    broker.start()
    yield f"broker {number}: {name}-{partition}"


def end(broker: LabBroker, fault: Fault) -> None:
    """Kill or stop it."""
    if fault.target // 2 % 2:
        broker.stop()
    else:
        broker.kill()


@contextlib.contextmanager
def _restarted(broker: LabBroker, fault: Fault, directories: Sequence[Path]) -> Iterator[None]:
    end(broker, fault)
    broker.use(directories)
    try:
        yield
    finally:
        broker.start()


def _swap(pairs: Sequence[tuple[Path, Path]]) -> None:
    """Exchange the contents; the disks are different file systems."""
    for one, other in pairs:
        aside = one.with_name("aside")
        one.rename(aside)
        shutil.move(other, one)
        shutil.move(aside, other)


def _names(directories: Sequence[Path]) -> str:
    return ",".join(one.name for one in directories)
