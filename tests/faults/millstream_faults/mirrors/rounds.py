"""Rounds: one fault each, then the checks. See ``--help``."""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException

from millstream_harness.ledger import check
from millstream_harness.links import has_tun
from millstream_harness.mirror_groups import commit, committed
from millstream_kafka.client.errors import BrokerError
from millstream_kafka.protocol.errors import ApiError

from ..draws import Fault, draw
from ..isolation import inside, reenter, unshare
from ..options import add_rounds, kinds_of, parsed
from .checks import DIFFERS, Log, lacks, out_of_step, read_log
from .faults import RECORDS, Faults
from .keyed import KEYED, Produced, altered, lacks_keyed, unequal_keyed
from .lab import (
    BACK_S,
    COMPACTED,
    GROUP,
    IDENTITY,
    MODES,
    PARTITIONS,
    SETTINGS,
    STEADY,
    Lab,
    copy_of,
)
from .plan import Kind
from .settings import Settings, settings_of, unlike

LOOK_S = 0.5
TAIL = 2000
"""Number of offsets at a copy's end in which to look for the source's last record, as producers continue."""
Source = dict[tuple[str, int], Log]


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='make faults FAULTS="mirrors',
        description="Two clusters of three brokers and mirrors of both modes between them: workers, brokers and the"
        " link die, stall and flap, and topics change.",
    )
    parser.add_argument(
        "--kinds", type=kinds_of(Kind), default=list(Kind), help="only these: 'kill worker,cut link'"
    )
    add_rounds(parser, 60, "how many")
    return parsed(parser, given)


class Rounds:
    def __init__(self, lab: Lab, seed: int) -> None:
        self._lab = lab
        self._faults = Faults(lab, seed)
        self.violations: list[str] = []
        self.struck: dict[str, list[float]] = {}
        """Time from the end of each fault until copies had all records, in s, by kind."""

    def round(self, number: int, fault: Fault[Kind]) -> None:
        for topic in self._lab.sent:
            self._lab.produce(topic, RECORDS)
        time.sleep(fault.moment)
        self._faults.strike(fault)
        ended = time.monotonic()
        self._lab.west.await_in_sync(STEADY, timeout=BACK_S)
        found = self._compare()
        took = time.monotonic() - ended
        self.struck.setdefault(fault.kind.text, []).append(took)
        found += self._faults.violations
        self._faults.violations.clear()
        self.violations += [f"round {number}, {fault.kind.text}: {one}" for one in found]
        said = f": VIOLATION: {'; '.join(found)}" if found else ""
        print(
            f"{number}: {fault.kind.text} for {fault.seconds} s, all mirrored after {took:.1f} s{said}",
            flush=True,
        )

    def _compare(self) -> list[str]:
        source = self._read_source()
        here = [max(source[STEADY, number].records) for number in self._steady()]
        commit(self._lab.west, GROUP, STEADY, *here)
        return self._await_copies(source, here) or self._differences()

    def _steady(self) -> range:
        return range(self._lab.steady_partitions())

    def _partitions(self) -> list[tuple[str, int]]:
        """Those of all topics."""
        numbers = {topic: range(count) for topic, count in PARTITIONS.items()} | {STEADY: self._steady()}
        return [(topic, number) for topic in numbers for number in numbers[topic]]

    def _read_source(self) -> Source:
        return {at: read_log(self._lab.west, *at) for at in self._partitions()}

    def _await_copies(self, source: Source, here: list[int]) -> list[str]:
        """Wait until copies and the group's positions catch up; return whatever is late after BACK_S."""
        deadline = time.monotonic() + BACK_S
        late: dict[str, Callable[[], str]] = {}
        for (topic, number), read in source.items():
            for mode in MODES:
                late[f"{copy_of(topic, mode)}-{number}"] = partial(self._lag, mode, topic, number, read)
        for mode in MODES:
            late[f"positions in {copy_of(STEADY, mode)}"] = partial(self._wrong_positions, mode, source, here)
        for mode in MODES:
            late[f"settings of {mode} copies"] = partial(self._wrong_settings, mode)
        late |= self._faults.later
        self._faults.later = {}
        while True:
            said = {what: self._try(check) for what, check in late.items()}
            late = {what: check for what, check in late.items() if said[what]}
            if not late or time.monotonic() > deadline:
                return [f"{what} after {BACK_S:g} s: {said[what]}" for what in late]
            time.sleep(LOOK_S)

    def _try(self, check: Callable[[], str]) -> str:
        """The check's result; an error while brokers are away counts as late."""
        try:
            return check()
        except (ApiError, BrokerError, KafkaException, AssertionError, OSError) as error:
            return f"{type(error).__name__}: {error}"

    def _lag(self, mode: str, topic: str, number: int, source: Log) -> str:
        copy = read_log(self._lab.east, copy_of(topic, mode), number, last=TAIL)
        late = (lacks_keyed if topic == COMPACTED else lacks)(source, copy, is_identity=mode == IDENTITY)
        return "records are absent" if late else ""

    def _wrong_settings(self, mode: str) -> str:
        """How settings of copies differ from those of the source now, or of its topics as they were created."""
        copies = settings_of(self._lab.east, [copy_of(topic, mode) for topic in PARTITIONS])
        wanted: Mapping[str, Settings] = {topic: SETTINGS.get(topic, {}) for topic in PARTITIONS}
        if mode == IDENTITY:
            wanted = settings_of(self._lab.west, PARTITIONS)
        said = {topic: unlike(wanted[topic], copies[copy_of(topic, mode)]) for topic in PARTITIONS}
        return "; ".join(f"{topic}: {one}" for topic, one in said.items() if one)

    def _wrong_positions(self, mode: str, source: Source, here: list[int]) -> str:
        name = copy_of(STEADY, mode)
        there = committed(self._lab.east, GROUP, name)
        if len(there) < len(here) or (mode == IDENTITY and there != here):
            return f"{there}, in the source {here}"
        said = (
            out_of_step(
                source[STEADY, number], read_log(self._lab.east, name, number, since=at), here[number], at
            )
            for number, at in enumerate(there)
        )
        return next(filter(None, said), "")

    def _differences(self) -> list[str]:
        """How the copies differ from the source; the source is read last, because copies may not be ahead of it."""
        copies = {
            (topic, number, mode): read_log(self._lab.east, copy_of(topic, mode), number)
            for topic, number in self._partitions()
            for mode in MODES
        }
        source = self._read_source()
        said = {
            f"{copy_of(topic, mode)}-{number}": self._differs(
                mode, topic, number, source[topic, number], copy
            )
            for (topic, number, mode), copy in copies.items()
        }
        return [f"{what}: {one}" for what, one in said.items() if one]

    def _differs(self, mode: str, topic: str, number: int, source: Log, copy: Log) -> str:
        if topic != COMPACTED:
            return DIFFERS[mode](source, copy)
        produced = Produced.by(self._lab.keyed.ledger, number)
        return KEYED[mode](produced, copy) or altered(source, copy)

    def end(self) -> None:
        """Stop the producers. Each record got a response, and the source and all copies have the acknowledged ones."""
        self._lab.end_loads()
        self._faults.later |= self._faults.promotions.checks()
        self.violations += [f"at the end: {one}" for one in self._compare()]
        try:
            check(self._lab.west.bootstrap, STEADY, self._lab.loads)
        except AssertionError as error:
            self.violations.append(f"the source itself: {error}")
        for number in range(PARTITIONS[COMPACTED]):
            produced = Produced.by(self._lab.keyed.ledger, number)
            if said := unequal_keyed(produced, read_log(self._lab.west, COMPACTED, number)):
                self.violations.append(f"the source itself: {COMPACTED}-{number}: {said}")
        for load in (*self._lab.loads, self._lab.keyed):
            self.violations += [f"not acknowledged: {one}" for one in load.ledger.failed]


def main(given: list[str]) -> int:
    """Return 0 if every promise held, 1 if one did not, 2 if the rounds could not start."""
    wanted = arguments(given)
    if shutil.which("java") is None:
        print(
            "faults: ZooKeeper needs Java 17: install it (Debian: openjdk-17-jdk-headless)", file=sys.stderr
        )
        return 2
    if not inside():
        command = unshare()
        if command is None or not has_tun():
            print(
                "faults: mirrors need network namespaces and TUN devices: run as root, or allow user namespaces"
                " (needs util-linux, iproute2 and iptables)",
                file=sys.stderr,
            )
            return 2
        return reenter(command, ["mirrors", *given])
    out = (wanted.out or Path(tempfile.mkdtemp(prefix="millstream-mirrors-"))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    print(f"faults: mirrors in {out}; --seed {wanted.seed} has the same faults", flush=True)
    with Lab(out, wanted.seed) as lab:
        rounds = Rounds(lab, wanted.seed)
        drawn = draw(wanted.seed, wanted.kinds)
        for number in range(wanted.rounds):
            rounds.round(number, next(drawn))
        rounds.end()
        records = sum(load.ledger.count for load in lab.loads)
    print(f"{'struck':40}{'rounds':>7}{'mirrored after (median, longest)':>36}")
    for kind, took in sorted(rounds.struck.items()):
        print(f"{kind:40}{len(took):7}{statistics.median(took):28.1f} s{max(took):5.1f} s")
    print(f"records: {records:,}, partitions: {len(lab.loads) + PARTITIONS[STEADY] - 1}")
    print(f"violations: {len(rounds.violations)}")
    for violation in rounds.violations:
        print(f"  {violation}")
    return 1 if rounds.violations else 0
