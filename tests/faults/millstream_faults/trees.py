"""A tree in ZooKeeper that is not the cluster's, or not its newest: at a wrong path, empty, another cluster's, older.

While it is, no partition needs to be available. An operator then puts it right: the path is corrected, the own tree put
back. A restored tree stays. Then the operator starts brokers that have ended, restarts the others, and creates again
the topics that the tree does not know. See `Administration.settle` for what a restore may lose.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator

from .directories import end
from .ensemble import foreign
from .plan import Fault
from .roles import Roles
from .topics import ANEW, COMPACTED, PLANS, STEADY

NOT_OURS = "belong to cluster"
"""What a broker with data logs that does not start with a tree."""
OLDER = "was restored from an older copy"
"""What a running broker logs that ends because of an older tree."""
WRONG = "/elsewhere"
CONNECT = "zookeeper.connect"


@contextlib.contextmanager
def wrong_path(roles: Roles, fault: Fault) -> Iterator[str]:
    """A broker, or each, gets a `zookeeper.connect` with a path at which there is nothing, or another cluster."""
    lab, drawn = roles.lab, random.Random(fault.target)
    root = f"{WRONG}-{fault.target}"
    if is_foreign := drawn.random() < 0.5:
        lab.ensemble.write(foreign(lab.ensemble.tree()), root)
    numbers = sorted(lab.brokers) if drawn.random() < 0.4 else [roles.leader(fault)]
    right = lab.connect
    brokers = [lab.brokers[number] for number in numbers]
    for broker in brokers:
        end(broker, fault)
        broker.config[CONNECT] = f"{right.partition('/')[0]}{root}"
    try:
        for broker in brokers:
            broker.refuse(NOT_OURS)
        yield f"brokers {numbers}, {'another cluster' if is_foreign else 'nothing'} is there"
    finally:
        for broker in brokers:
            broker.config[CONNECT] = right
        lab.launch(brokers)


@contextlib.contextmanager
def replaced(roles: Roles, fault: Fault, is_foreign: bool) -> Iterator[str]:
    """ZooKeeper loses its data; another cluster may have put its own there. A broker is restarted meanwhile."""
    lab = roles.lab
    number = roles.leader(fault)
    broker = lab.brokers[number]
    tree = foreign(lab.ensemble.tree()) if is_foreign else {}
    own = lab.ensemble.away()
    try:
        lab.ensemble.replace(None)
        lab.ensemble.write(tree, lab.ensemble.root)
        end(broker, fault)
        broker.refuse(NOT_OURS)
        yield f"broker {number} is restarted"
    finally:
        lab.ensemble.replace(own)
        lab.launch([broker])


@contextlib.contextmanager
def restored(roles: Roles, fault: Fault, is_live: bool) -> Iterator[str]:
    """ZooKeeper gets a copy of its data from before a change, while brokers run or while none does."""
    lab, drawn = roles.lab, random.Random(fault.target)
    roles.await_whole()
    copied = lab.ensemble.copy()
    changes = [_change(roles, fault, drawn)]
    time.sleep(fault.seconds)
    brokers = lab.brokers.values()
    if not is_live:
        for broker in brokers:
            end(broker, fault)
    since = time.monotonic()
    lab.ensemble.replace(copied)
    try:
        yield f"from before {', '.join(changes)}"
    finally:
        for broker in brokers:
            if is_live and not broker.ended_with(OLDER):
                end(broker, fault)
        lab.launch(list(brokers))
        lab.administration.settle(since)


def _change(roles: Roles, fault: Fault, drawn: random.Random) -> str:
    """Change what a copy then lacks: leaders and ISRs, and perhaps a topic or where a partition is."""
    lab = roles.lab
    number = drawn.choice((roles.leader, roles.follower, roles.controller))(fault)
    lab.brokers[number].kill()
    what = f"a restart of broker {number}"
    try:
        time.sleep(drawn.uniform(0.0, 1.0))
    finally:
        lab.brokers[number].start()
    match drawn.choice(("nothing", "topic", "compacted topic", "move", "move")):
        case "topic":
            what += f", {lab.administration.make_anew(ANEW, 0.0)}"
        case "compacted topic":
            what += f", {lab.administration.make_anew(COMPACTED, 0.0)}"
        case "move":
            name, partition = drawn.choice((ANEW, STEADY)), 0
            count = min(2, PLANS[name].replicas)
            order = drawn.sample(sorted(lab.brokers), count)
            told = lab.administration.reassign(name, {partition: order})
            what += f", {name}-{partition} to {order} ({told})"
    return what
