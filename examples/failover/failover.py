"""`make demo-failover`: one of two clusters is lost under load, the other takes over, and every record is counted.

    up        apply this folder's manifests: clusters west and east, a topic in west, a mirror from west to east
    traffic   a producer sends numbered records to west; a consumer of the group shop consumes and commits them
    failure   the link between west and east fails (the mirror's worker is stopped), then west (its broker is killed)
    promote   apply mirror.yaml with its line `promote`, as the file says
    move      the producer continues in east, and sends again what west did not acknowledge; so does the group
    count     every record: produced, mirrored, missing, consumed, repeated

Everything is stopped at the end, however it ends. Exit status: 0 if the counts add up, 1 if not, 130 interrupted.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from confluent_kafka import KafkaException

from account import Account, Evidence
from clients import GROUP, TOPIC, Client, Orders, Shop, read_all
from millstream.connection import Cluster
from millstream.errors import MillstreamError
from millstream.groups import committed_offsets
from millstream.topics import describe_topic
from millstream_operator.local.processes import StartFailed
from millstream_operator.local.runtime import LocalRuntime, Reporter
from millstream_operator.local.state import StateError

HERE = Path(__file__).parent
OUT = Path("demo-failover-out")
DATA = OUT / "data"
PROMOTION = OUT / "mirror.yaml"
"""The manifest mirror.yaml with spec.promote."""
MIRROR = "west-to-east"
BROKER, MIRROR_WORKER = "broker/default/west/0", f"mirror/default/{MIRROR}/0"
IN_WEST, WITHOUT_LINK, IN_EAST = 10_000, 1_000, 5_000
"""Least number of acknowledged records in each phase."""
PROGRESS_EVERY_S = 1.0
LONGEST_STEP_S = 60.0


class DemoFailed(Exception):
    """One line that says why."""


def main() -> int:
    signal.signal(signal.SIGTERM, interrupted)
    try:
        fresh()
        west, east = up(HERE)
        account = fail_over(west, east)
        report(account)
        for problem in (problems := [*account.problems()]):
            say(f"wrong: {problem}")
        if problems:
            raise DemoFailed("the counts do not add up")
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except (DemoFailed, MillstreamError, KafkaException, StartFailed, StateError, OSError) as error:
        say(f"failed: {error}")
        return 1
    finally:
        stop()
    say(
        f"produced {len(account.produced):,} = in east {len(account.kept):,} + missing {len(account.missing):,};"
        f" the group consumed all {len(account.kept):,} of east"
    )
    return 0


def up(manifests: Path) -> list[str]:
    """Apply manifests; returns the addresses of west and east."""
    say(f"millstream local up -f {shown(manifests)} --data {DATA}")
    runtime = LocalRuntime(DATA, Reporter(say=lambda line: say(f"  {line}")))
    outcome = runtime.up(manifests)
    for resource, problem in outcome.failures.items():
        raise DemoFailed(f"{resource}: {problem}")
    return [found("Cluster", name)["status"].get("bootstrap", "") for name in ("west", "east")]


def fail_over(west: str, east: str) -> Account:
    at_east = Cluster(east)
    orders, shop = Orders(west), Shop(west)
    clients: list[Client] = [orders, shop]
    say(f"a producer sends {TOPIC} to west, and the group {GROUP} consumes them there")
    shop.start()
    wait(shop.joined.is_set, clients)
    orders.start()

    def works() -> bool:
        copied = committed_offsets(at_east, GROUP)
        return len(orders.acknowledged[0]) >= IN_WEST and any(offset > 0 for offset in copied.values())

    def say_mirrored() -> None:
        mirrored = sum(one.latest or 0 for one in describe_topic(at_east, TOPIC).partitions)
        say(
            f"  acknowledged {len(orders.acknowledged[0]):,}, consumed {len(shop.consumed):,},"
            f" mirrored {mirrored:,}"
        )

    wait(works, clients, say_mirrored)
    processes = {daemon["name"]: daemon["pid"] for daemon in LocalRuntime(DATA).status().daemons}
    os.kill(processes[MIRROR_WORKER], signal.SIGSTOP)
    so_far = len(orders.acknowledged[0])
    say("the link between west and east fails: the mirror's worker is stopped (SIGSTOP)")
    wait(lambda: len(orders.acknowledged[0]) >= so_far + WITHOUT_LINK, clients, say_mirrored)
    os.kill(processes[BROKER], signal.SIGKILL)
    os.kill(processes[MIRROR_WORKER], signal.SIGCONT)
    say("west fails: its broker is killed (SIGKILL)")

    text = (HERE / "mirror.yaml").read_text()
    PROMOTION.write_text(text.replace("#  promote:", "  promote:"))
    say(f"{PROMOTION} is mirror.yaml with spec.promote")
    up(PROMOTION)
    (point,) = found("MirrorMaker", MIRROR)["status"]["lastPromotion"]["topics"]
    committed = committed_offsets(at_east, GROUP)
    positions = [max(0, committed.get((TOPIC, number), 0)) for number in range(len(point["ends"]))]
    say_point(point, positions)

    say(f"producer and group move to east; {len(orders.waiting):,} records of the producer wait for that")
    shop.stop()
    orders.move(east)
    continued = Shop(east)
    continued.start()
    clients = [orders, continued]

    def say_consumed() -> None:
        say(f"  acknowledged {len(orders.acknowledged[-1]):,}, consumed {len(continued.consumed):,}")

    wait(
        lambda: len(orders.acknowledged) == 2 and len(orders.acknowledged[1]) >= IN_EAST,
        clients,
        say_consumed,
    )
    orders.stop()
    stored = read_all(east)
    left = len(stored) - sum(positions)
    wait(lambda: len(continued.consumed) >= left, clients, say_consumed)
    continued.stop()
    in_west, in_east = orders.acknowledged
    return Account(
        Evidence(in_west, in_east, stored, point["ends"], positions, shop.consumed, continued.consumed)
    )


def say_point(point: dict[str, Any], positions: list[int]) -> None:
    """Print the recovery point of each partition."""
    known = point.get("sourceEnds") or [-1] * len(positions)
    for number, (end, there, position) in enumerate(zip(point["ends"], known, positions, strict=True)):
        say(
            f"  partition {number}: mirrored up to offset {end:,}; west ended at {there:,} as last known;"
            f" the group continues at {position:,}"
        )


def report(account: Account) -> None:
    seen = account.seen
    unacknowledged = len(set(account.mirrored.values()) - seen.west.keys())
    say("the account:")
    say(f"  produced  {len(account.produced):>7,}  {len(seen.west):,} to west, {len(seen.east):,} to east")
    say(f"  mirrored  {len(account.mirrored):>7,}  {unacknowledged:,} of them not acknowledged by west")
    say(
        f"  missing   {len(account.missing):>7,}  acknowledged by west and not mirrored;"
        f" {account.missing_but_consumed:,} of them were consumed in west"
    )
    say(
        f"  consumed  {len(seen.before) + len(seen.after):>7,}  {len(seen.before):,} in west before,"
        f" {len(seen.after):,} in east after"
    )
    say(
        f"  repeated  {account.repeated:>7,}  {account.read_again:,} since the group's last copied position;"
        f" {account.sent_again:,} that west had stored and not acknowledged, so the producer sent them again"
    )


def wait(
    done: Callable[[], bool], clients: list[Client], progress: Callable[[], None] = lambda: None
) -> None:
    """Wait until a condition holds, and print the progress; raises the error of a failed client."""
    begun = said = time.monotonic()
    while not done():
        for client in clients:
            client.check()
        now = time.monotonic()
        if now - begun > LONGEST_STEP_S:
            raise DemoFailed(f"this step took longer than {LONGEST_STEP_S:.0f} s")
        if now - said > PROGRESS_EVERY_S:
            said = now
            progress()
        time.sleep(0.05)
    progress()


def found(kind: str, name: str) -> dict[str, Any]:
    """A resource with its status."""
    for resource in LocalRuntime(DATA).status().resources:
        if (resource["kind"], resource["metadata"]["name"]) == (kind, name):
            return resource
    raise DemoFailed(f"there is no {kind} {name}")


def fresh() -> None:
    """Empty the output folder, after stopping what a killed demo left running."""
    stop()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()


def stop() -> None:
    """Stop all processes, uninterruptibly."""
    before = [signal.signal(one, signal.SIG_IGN) for one in (signal.SIGINT, signal.SIGTERM)]
    LocalRuntime(DATA).down()
    for one, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
        signal.signal(one, handler)


def interrupted(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def shown(path: Path) -> str:
    """A path as a reader in the repository would write it."""
    return str(path.relative_to(HERE.parents[1])) if path.is_relative_to(HERE.parents[1]) else str(path)


def say(line: str) -> None:
    print(f"failover: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
