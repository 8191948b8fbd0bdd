"""A run: start the cluster and its clients, strike the plan's faults, heal everything, and check the history."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from millstream_kafka.client.errors import BrokerError
from millstream_kafka.protocol.errors import ApiError

from .checker import GROUP, check, check_replicas
from .faults import Faults
from .guard import Guard
from .history import Acknowledged, Event, HistoryWriter, Struck, Trouble, read_history
from .isolation import Network, inside
from .lab import Lab, Watch
from .plan import Fault, Group, Kind, Step, draw
from .positions import SIMPLE
from .probe import LATEST, READ_COMMITTED, Known, Probe
from .replicas import BadLogError, copies, entries, fated, folders
from .report import summary, timeline
from .roles import NothingToStrikeError
from .story import tell
from .topics import ANEW, COMPACTED, COPIES, LISTS, PLANS, STEADY, Place
from .transacted import COPIER, PEEKER, READER, check_transactions
from .users import SECURED_CLIENTS
from .violations import Entry, Violation

WORKERS = (
    ("writer", "writer-1", STEADY),
    ("writer", "writer-2", STEADY),
    ("aiowriter", "writer-3", STEADY),
    ("writer", "writer-4", ANEW),
    ("writer", "writer-5", COMPACTED),
    ("member", f"{GROUP}1", STEADY),
    ("member", f"{GROUP}2", STEADY),
    ("reader", "reader", STEADY),
    ("rereader", "rereader", STEADY),
    ("watcher", "watcher", STEADY),
    ("visitor", f"{SIMPLE}-1", ANEW),
    ("listwriter", "lister-1", LISTS),
    ("listwriter", "lister-2", LISTS),
    ("newlistwriter", "lister-3", LISTS),
    ("copier", f"{COPIER}1", LISTS),
    ("copier", f"{COPIER}2", LISTS),
    ("listreader", f"{READER}reader", LISTS),
    ("listreader", f"{PEEKER}reader", LISTS),
    ("listreader", f"{READER}copies", COPIES),
)
CHECKED = (STEADY, ANEW, COMPACTED)
TRANSACTED = (LISTS, COPIES)
HEAL_S = 90.0
WARM_UP_S = 2.0
COOL_DOWN_S = 3.0
"""Time to write after all is whole, so that the newest topics get records."""
MOST_STORIES = 5


@dataclass(frozen=True, slots=True)
class Options:
    out: Path
    seed: int
    count: int
    seconds: float
    servers: int
    kinds: Sequence[Kind] = field(default_factory=lambda: list(Kind))
    only_transactions: bool = False


class Run:
    """`go` returns the violations; all data of the run is in ``out``."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.out = options.out
        self.histories = self.out / "history"
        self.began = time.monotonic()
        self.left_out: dict[str, str] = {}
        self.clients = [one for one in WORKERS if one[2] in TRANSACTED or not options.only_transactions]
        self.workers: list[subprocess.Popen[bytes]] = []

    def go(self) -> list[Violation]:
        self.histories.mkdir(parents=True)
        network = Network([1, 2, 3]) if inside() else None
        kinds = self._possible(network)
        steps = draw(self.options.seed, self.options.count, kinds)
        self.history = HistoryWriter(self.histories / "lab.jsonl")
        self.lab = Lab(self.out / "cluster", network, self.options.servers, self.history)
        violations: list[Violation] = []
        with contextlib.ExitStack() as ending:
            ending.callback(self.lab.kill)
            self.lab.start()
            watch = ending.enter_context(Watch(self.lab, self.history))
            guard = ending.enter_context(Guard(self.lab.users, self.history))
            ending.callback(self._kill_workers)
            self.began = time.monotonic()
            self._start_workers()
            self.say(
                f"{len(self.clients)} clients, {self.options.count} faults from seed {self.options.seed}"
            )
            time.sleep(WARM_UP_S)
            self._strike_all(steps, Faults(self.lab, watch), watch)
            self._await_whole(watch)
            self.lab.users.check_private()
            self.say(f"without the right: {guard.summary()}")
            time.sleep(COOL_DOWN_S)
            self._end_workers()
            asyncio.run(self._await_ended())
            self.seconds = time.monotonic() - self.began
            replicas = watch.replicas()
            self._stop_brokers()
            self.history.close()
            violations = self._check(replicas)
            self._report(violations)
            if violations:
                self._keep_data()
        return violations

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:8.1f}  {text}", flush=True)

    def trouble(self, text: str) -> None:
        self.say(f"TROUBLE: {text}")
        self.history.add(Trouble(time.monotonic(), "lab", text))

    def _possible(self, network: Network | None) -> list[Kind]:
        kinds = list(self.options.kinds)
        if network is None:
            why = "no namespaces for this user (root has them; see unshare(1))"
            self.left_out |= {"networks that are cut": why, "disks that are full": why}
            kinds = [kind for kind in kinds if kind.group is not Group.NETWORK and kind is not Kind.FULL_DISK]
        if self.options.servers == 1:
            single = (Kind.KILL_ZOOKEEPER, Kind.PAUSE_ZOOKEEPER, Kind.RESTORE_ZOOKEEPER_LIVE)
            kinds = [kind for kind in kinds if kind not in single]
        for what, text in self.left_out.items():
            self.say(f"left out: {what}: {text}")
        return kinds

    # Clients

    def _start_workers(self) -> None:
        for role, name, topic in self.clients:
            known = self.lab.administration.topics[topic]
            with (self.out / f"{name}.log").open("wb") as log:
                command = [sys.executable, "-P", "-m", "millstream_faults.workers", role, name]
                is_secured = name in SECURED_CLIENTS
                bootstrap = self.lab.secured_bootstrap if is_secured else self.lab.bootstrap
                command += [str(self.histories / f"{name}.jsonl"), bootstrap, topic]
                command += [known.id, str(known.partitions)]
                environment = self.lab.users.environment(name) if is_secured else {}
                self.workers.append(
                    subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})
                )

    def _end_workers(self) -> None:
        """End writers first, so that readers know the end of the log."""
        by_role = list(zip(self.clients, self.workers, strict=True))
        for writers in (True, False):
            ending = [
                (name, process) for (role, name, _), process in by_role if ("writer" in role) == writers
            ]
            for _, process in ending:
                process.send_signal(signal.SIGTERM)
            for name, process in ending:
                try:
                    status = process.wait(2 * HEAL_S)
                except subprocess.TimeoutExpired:
                    self.trouble(f"{name} did not end")
                    continue
                if status:
                    self.trouble(f"{name} ended with status {status}; see {name}.log")

    async def _await_ended(self) -> None:
        """Every transaction ends: the last stable offset reaches the high watermark."""
        deadline = time.monotonic() + HEAL_S
        open_ones = {
            (name, partition)
            for name in TRANSACTED
            for partition in range(self.lab.administration.topics[name].partitions)
        }
        async with Probe(self.lab.bootstrap, "lab") as probe:
            while open_ones and time.monotonic() < deadline:
                for name, partition in sorted(open_ones):
                    with contextlib.suppress(BrokerError, ApiError):
                        end = await probe.offset(name, partition, LATEST)
                        if await probe.offset(name, partition, LATEST, READ_COMMITTED) >= end:
                            open_ones.discard((name, partition))
                await asyncio.sleep(0.1)
        for name, partition in sorted(open_ones):
            self.trouble(f"{name}-{partition}: a transaction did not end within {HEAL_S:g} s")

    def _kill_workers(self) -> None:
        for process in self.workers:
            process.kill()
            process.wait()

    # Faults

    def _strike_all(self, steps: Sequence[Step], faults: Faults, watch: Watch) -> None:
        deadline = self.began + self.options.seconds
        for number, step in enumerate(steps, 1):
            time.sleep(step.wait)
            if time.monotonic() > deadline:
                self.say(f"the time is over: {number - 1} of {len(steps)} steps")
                return
            striking = [threading.Thread(target=self._strike, args=(fault, faults)) for fault in step.faults]
            for thread in striking:
                thread.start()
            for thread in striking:
                thread.join()
            self._revive()
            self.lab.look_at_disks()
            if step.calm:
                self._await_whole(watch)

    def _revive(self) -> None:
        """Record each process that ended by itself as a violation, and restart it."""
        for broker, process in self.lab.ended():
            if process is not None:
                self.trouble(f"broker {broker} ended by itself, status {process.returncode}")
            self.lab.brokers[broker].start()
        for server in self.lab.servers:
            if server.process is None:
                server.start()

    def _strike(self, fault: Fault, faults: Faults) -> None:
        at = time.monotonic()
        text = str(fault)
        try:
            with faults.strike(fault) as text:
                self.say(f"{text} for {fault.seconds} s")
                time.sleep(fault.seconds)
        except NothingToStrikeError as error:
            self.say(f"{text} does not happen: {error}")
            return
        except Exception as error:
            self.trouble(f"{text}: {error!r}")
        self.history.add(Struck(at, "lab", text, time.monotonic()))
        self.history.flush()

    def _await_whole(self, watch: Watch) -> None:
        """After the last fault, the cluster must soon be whole."""
        begun = time.monotonic()
        if not watch.await_whole(HEAL_S):
            self.trouble(f"not whole {HEAL_S:g} s after the last fault: {'; '.join(watch.missing())}")
            return
        self.say(f"whole again after {time.monotonic() - begun:.1f} s")

    def _stop_brokers(self) -> None:
        for number, broker in self.lab.brokers.items():
            try:
                status = broker.stop()
            except subprocess.TimeoutExpired:
                self.trouble(f"broker {number} did not stop within {broker.stop_timeout_s:g} s")
            else:
                if status:
                    self.trouble(f"broker {number} ended with status {status} after SIGTERM")
            said = broker.said()
            if place := said.count("Traceback"):
                at = said.index("Traceback")
                self.trouble(
                    f"broker {number} has {place} stack traces: {said[max(0, at - 300) : at + 1500]}"
                )

    # Results

    def events(self) -> Iterator[Event]:
        return read_history(self.histories)

    def _check(self, replicas: Mapping[Place, Sequence[int]]) -> list[Violation]:
        data = {number: broker.data for number, broker in self.lab.brokers.items()}
        topics = {name: self.lab.administration.topics[name] for name in (*CHECKED, *TRANSACTED)}
        whole = {name: known.id for name, known in topics.items() if name != COMPACTED}
        try:
            on_disk = {
                number: {place: copy for place, copy in having.items() if number in replicas.get(place, ())}
                for number, having in copies(data, whole).items()
            }
            logs = {
                number: {
                    (topics[name].id, partition): entries(folder)
                    for name in CHECKED
                    for partition, folder in folders(path, name, topics[name].id)
                    if number in replicas.get((topics[name].id, partition), ())
                }
                for number, path in data.items()
            }
        except BadLogError as error:
            return [Violation("replicas", str(error))]
        events = list(self.events())
        identity = topics[COMPACTED].id
        compacted = {
            number: {place: log for place, log in of_broker.items() if place[0] == identity}
            for number, of_broker in logs.items()
        }
        log = {
            place: log
            for of_broker in logs.values()
            for place, log in of_broker.items()
            if place[0] != identity
        }
        found = check(events, log, compacted) + check_replicas(on_disk)
        checked = {name: topics[name] for name in CHECKED}
        found += self._missing(checked, logs)
        if not self.options.only_transactions:
            found += self._silent(checked, events)
        return found + self._check_transactions(events, data, replicas)

    def _check_transactions(
        self, events: Sequence[Event], data: Mapping[int, Path], replicas: Mapping[Place, Sequence[int]]
    ) -> list[Violation]:
        topics = {name: self.lab.administration.topics[name].id for name in TRANSACTED}
        log = {
            (identity, partition): fated(folder)
            for number, path in data.items()
            for name, identity in topics.items()
            for partition, folder in folders(path, name, identity)
            if number in replicas.get((identity, partition), ())
        }
        return check_transactions(events, log, {topics[COPIES]: topics[LISTS]})

    def _missing(
        self, topics: Mapping[str, Known], logs: Mapping[int, Mapping[Place, Sequence[Entry]]]
    ) -> list[Violation]:
        found = []
        for name, known in topics.items():
            for partition in range(known.partitions):
                having = [broker for broker, log in logs.items() if (known.id, partition) in log]
                if len(having) < PLANS[name].replicas:
                    text = f"only brokers {having} have it"
                    found.append(Violation("replicas", text, partition, topic=known.id))
        return found

    def _silent(self, topics: Mapping[str, Known], events: Sequence[Event]) -> list[Violation]:
        """Partitions that acknowledged no record, although the cluster was whole for some seconds."""
        acknowledged = {(event.topic, event.partition) for event in events if isinstance(event, Acknowledged)}
        return [
            Violation("trouble", "nothing was acknowledged at all", partition, topic=known.id)
            for known in topics.values()
            for partition in range(known.partitions)
            if (known.id, partition) not in acknowledged
        ]

    def _report(self, violations: Sequence[Violation]) -> None:
        events = list(self.events())
        text = summary(events, violations, self.left_out, self.seconds)
        logs: Mapping[int, Path] = {number: broker.output for number, broker in self.lab.brokers.items()}
        for violation in violations[:MOST_STORIES]:
            text = f"{tell(violation, events, logs, self.began)}\n\n{text}"
        (self.out / "summary.txt").write_text(text + "\n")
        (self.out / "violations.txt").write_text("".join(f"{violation}\n" for violation in violations))
        timeline(events, self.began, self.out / "timeline.png")
        print(f"\n{text}\n{self.out / 'timeline.png'}", flush=True)

    def _keep_data(self) -> None:
        """Copy the disks to ``out``: they disappear with the namespaces."""
        for number, broker in self.lab.brokers.items():
            shutil.copytree(broker.data, self.out / "kept" / f"broker-{number}", dirs_exist_ok=True)
        print(f"logs and data are kept in {self.out}", flush=True)
