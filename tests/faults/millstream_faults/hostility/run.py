"""An hour, or some minutes, of hostile traffic on three brokers; what it must not achieve, and what it must not cost.

    make faults FAULTS="hostility --seconds 3600 --seed 7"

Equal seeds draw equal attacks. Its verdict: nothing is served without a credential and a right, what the administrator
sees is afterwards as before, a well-behaved client waits at most twice as long (p99), and memory, file descriptors,
threads and nodes in ZooKeeper do not grow without bound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millstream_broker.network.connection_lines import BURST, PER_MINUTE, LineCause
from millstream_harness.broker import BrokerProcess

from ..options import add_out, parsed
from .authenticated import OF_CLERK, Authenticated
from .lab import LISTENERS, REGULAR, STEADY, Lab, patiently
from .samples import Phases, Stored, Usage, acknowledged, growth, lost, usage, waits
from .unauthenticated import MECHANISMS, Outcome, Unauthenticated

BEFORE_S = 30.0
WARM_UP_S = 10.0
AFTER_S = 20.0
SETTLE_S = 15.0
SAMPLE_S = 2.0
MOST_SHOWN = 20
NODES_SLACK = 20
NICE = 10
"""Attackers usually have processors of their own: here they get what the brokers and the other client leave."""
TASKS = re.compile(r"^millstream_tasks (\S+)$", re.MULTILINE)
TRACES = ("Traceback", "failed in the broker", "a connection failed", "the broker failed")
"""Of these, a broker's log may have none: a hostile request is refused by a rule, not by an accident."""


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='make faults FAULTS="hostility', description=__doc__)
    parser.add_argument("--seconds", type=float, default=900.0, help="how long the attack lasts (900)")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="which attacks; new ones each time"
    )
    parser.add_argument(
        "--rate", type=float, default=20.0, help="attacks a second, of both sorts together (20)"
    )
    parser.add_argument("--at-once", type=int, default=60, help="attackers (60)")
    add_out(parser)
    return parsed(parser, given)


class Run:
    """`go` returns the violations."""

    def __init__(self, out: Path, seed: int, seconds: float, rate: float, at_once: int) -> None:
        self.out = out
        self.seed = seed
        self.seconds = seconds
        self.rate = rate
        self.at_once = at_once
        self.lab = Lab(out / "cluster")
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.samples: dict[int, list[Usage]] = defaultdict(list)
        self.violations: list[str] = []
        self.acknowledged = 0
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:8.1f}  {text}", flush=True)

    def violated(self, text: str) -> None:
        if text not in self.violations:
            self.violations.append(text)
            self.say(f"VIOLATION: {text}")

    async def go(self) -> list[str]:
        await self.lab.prepare()
        before = await self.lab.state()
        nodes = await asyncio.to_thread(self.lab.nodes)
        waiting = self.out / "waits.txt"
        regular = self._start_regular(waiting)
        sampling = asyncio.create_task(self._sample())
        try:
            await asyncio.sleep(WARM_UP_S)
            start = time.monotonic()
            await asyncio.sleep(BEFORE_S)
            attack = time.monotonic()
            os.nice(NICE)
            self.say(f"attacks of seed {self.seed} for {self.seconds:g} s, {self.rate:g} a second")
            await self._attack(attack + self.seconds)
            calm = time.monotonic()
            self.say("the attack is over")
            await asyncio.sleep(AFTER_S)
            phases = Phases(start, attack, calm, time.monotonic())
        finally:
            sampling.cancel()
            regular.send_signal(signal.SIGTERM)
            await asyncio.to_thread(regular.wait, 60)
        lines = waiting.read_text().splitlines()
        found = waits(lines, phases)
        for text in [*found.slower(), *found.errors[:MOST_SHOWN]]:
            self.violated(text)
        await self._check_records(acknowledged(lines))
        await self._check_state(before, nodes)
        for text in growth(self.samples, phases):
            self.violated(text)
        self._check_logs(phases)
        self._report(found.rows())
        return self.violations

    # The attack

    async def _attack(self, deadline: float) -> None:
        attackers = [self._attacker(number, deadline) for number in range(self.at_once)]
        await asyncio.gather(*attackers)

    async def _attacker(self, number: int, deadline: float) -> None:
        drawn = random.Random(f"{self.seed} {number}")
        strangers, users = Unauthenticated(self.lab, drawn), Authenticated(self.lab, drawn)
        while (now := time.monotonic()) < deadline:
            await asyncio.sleep(min(drawn.expovariate(self.rate / self.at_once), deadline - now))
            name, outcome = await (users.attack() if number % 3 == 0 else strangers.attack())
            self._judge(name, outcome)

    def _judge(self, name: str, outcome: Outcome) -> None:
        self.outcomes[name, outcome.end] += 1
        if outcome.is_served:
            self.violated(f"{name}: served without a right: {outcome.received[:300]!r}")
        canaries = self.lab.canaries
        for what, text in canaries._asdict().items():
            if text.encode() in outcome.received and not (name in OF_CLERK and what != "value"):
                at = outcome.received.index(text.encode())
                self.violated(
                    f"{name}: shows the hidden {what}: {outcome.received[max(0, at - 100) : at + 100]!r}"
                )

    # The measures

    def _start_regular(self, out: Path) -> subprocess.Popen[bytes]:
        bootstrap = ",".join(self.lab.cluster.addresses("SECURE"))
        command = [
            sys.executable,
            "-P",
            "-m",
            f"{__package__}.regular",
            bootstrap,
            str(self.lab.secured.trusted),
        ]
        with (self.out / "regular.log").open("wb") as log:
            return subprocess.Popen([*command, self.lab.passwords[REGULAR], str(out)], stdout=log, stderr=log)

    async def _sample(self) -> None:
        while True:
            for number, broker in self.lab.cluster.brokers.items():
                if broker.process is None or broker.process.poll() is not None:
                    self.violated(f"broker {number} has ended")
                    continue
                tasks = await asyncio.to_thread(_tasks, broker)
                self.samples[number].append(usage(broker.process.pid, time.monotonic(), tasks))
            await asyncio.sleep(SAMPLE_S)

    async def _check_state(self, before: Mapping[str, Any], nodes: tuple[int, int]) -> None:
        """Once what was allowed is removed, everything is as before."""
        await patiently(self.lab.remove_absurd)
        await asyncio.sleep(SETTLE_S)
        after = await patiently(self.lab.state)
        for name, value in before.items():
            if after[name] != value:
                self.violated(f"{name} changed: {_difference(value, after[name])}")
        now = await asyncio.to_thread(self.lab.nodes)
        self.say(f"nodes in ZooKeeper: {nodes[0]} before, {now[0]} after; notes: {nodes[1]} and {now[1]}")
        if now[0] > nodes[0] + NODES_SLACK:
            self.violated(f"ZooKeeper has {now[0]} nodes, and had {nodes[0]}")

    async def _check_records(self, acknowledged: Stored) -> None:
        stored = await patiently(lambda: self.lab.stored(STEADY))
        self.acknowledged = sum(map(len, acknowledged.values()))
        for text in lost(acknowledged, stored):
            self.violated(f"topic {STEADY}, {text}")

    def _check_logs(self, phases: Phases) -> None:
        minutes = (phases.end - phases.before + WARM_UP_S) / 60 + 1
        kinds = len(LineCause) + len(MECHANISMS)
        most = len(LISTENERS) * kinds * (BURST + PER_MINUTE * minutes)
        for number, broker in self.lab.cluster.brokers.items():
            said = broker.said()
            if (lines := said.count("connection_lines: ")) > most:
                self.violated(f"broker {number}: {lines} log lines about connections: at most {most:.0f}")
            for text in TRACES:
                if text in said:
                    at = said.index(text)
                    self.violated(
                        f"broker {number}: {said.count(text)} times: {said[max(0, at - 300) : at + 1500]}"
                    )

    def _report(self, rows: list[str]) -> None:
        ends: dict[str, Counter[str]] = defaultdict(Counter)
        for (name, end), count in self.outcomes.items():
            ends[name][end] += count
        lines = [
            f"{name}: {', '.join(f'{count} {end}' for end, count in of.most_common())}"
            for name, of in sorted(ends.items())
        ]
        for number, samples in self.samples.items():
            memory = [each.memory >> 20 for each in samples]
            most = [
                max(getattr(each, name) for each in samples) for name in ("descriptors", "threads", "tasks")
            ]
            size = self.lab.cluster.brokers[number].output.stat().st_size >> 10
            lines.append(
                f"broker {number}: memory {memory[0]} MB at first, {max(memory)} at most, {memory[-1]} at the end;"
                f" at most {most[0]} file descriptors, {most[1]} threads and {most[2]} tasks; {size} KB of log"
            )
        lines.append(f"acknowledged records: {self.acknowledged}")
        lines += [*rows, f"attacks: {sum(self.outcomes.values())}", f"violations: {len(self.violations)}"]
        text = "\n".join([*lines, *self.violations])
        (self.out / "summary.txt").write_text(text + "\n")
        (self.out / "samples.json").write_text(json.dumps(self.samples))
        print(f"\n{text}\n{self.out}", flush=True)


def _tasks(broker: BrokerProcess) -> int:
    """The tasks of its event loop; 0 if it does not respond in time."""
    try:
        _, page = broker.get("/metrics")
    except OSError:
        return 0
    found = TASKS.search(page)
    return int(float(found[1])) if found is not None else 0


def _difference(before: Any, after: Any) -> str:
    if isinstance(before, list):
        gone, new = (
            [each for each in before if each not in after],
            [each for each in after if each not in before],
        )
        return f"gone {gone[:5]}, new {new[:5]}"
    return f"{before} is {after}"


def main(given: list[str]) -> int:
    wanted = arguments(given)
    out = (wanted.out or Path(tempfile.mkdtemp(prefix="millstream-hostility-"))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    run = Run(out, wanted.seed, wanted.seconds, wanted.rate, wanted.at_once)
    try:
        with run.lab.cluster:
            return 1 if asyncio.run(run.go()) else 0
    except KeyboardInterrupt:
        print(f"faults: interrupted; what was seen is in {out}", file=sys.stderr)
        return 130
