"""Rounds: one run and one fault each, then the checks. See ``--help``."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from millstream_harness.broker import BrokerProcess
from millstream_harness.postgres import Postgres, postgres
from millstream_harness.s3 import BUCKET, S3Server, s3_server
from millstream_harness.spark import publish, spark_jars
from millstream_harness.spark_loads import ICEBERG_TABLE

from ..draws import Fault, draw
from ..options import add_rounds, parsed
from .lab import Lab, Loading
from .operated import OperatedLab
from .plan import BY_OPERATOR, IN_FOLDER, IN_S3, RESTORED, Kind
from .tables import PARTITIONS, Reader, Table

FORMATS = ("Parquet", "Delta", "Iceberg")
RECORDS = 20


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='make faults FAULTS="loads',
        description="Batch loads whose driver, executor, broker, S3 or operator dies or stalls at random moments, or"
        " which get a second driver.",
    )
    parser.add_argument("--format", choices=FORMATS, action="append", help="only these; may be repeated")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--where", choices=("folder", "s3"), default="folder", help="where the table is")
    ways.add_argument(
        "--operator",
        action="store_true",
        help="each run is one of a BatchLoad's, applied by `millstream local up`",
    )
    add_rounds(parser, 50, "how many for each format")
    return parsed(parser, given)


class Rounds:
    """The rounds of one format."""

    def __init__(self, lab: Loading, format: str, faults: Iterator[Fault[Kind]]) -> None:
        self.violations: list[str] = []
        self.struck: Counter[tuple[str, bool]] = Counter()
        """Count by kind, and by whether a run was under way."""
        self._lab = lab
        self._faults = faults
        self._topic = f"loads-{format.lower()}-{uuid.uuid4().hex[:8]}"
        self._usual = 0.0  # how long a run takes, in s
        self._ended = threading.Event()
        s3 = lab.s3
        catalog = lab.catalog if format == "Iceberg" else None
        path = f"s3a://{BUCKET}/{format}" if s3 else str(lab.out / format)
        self._table = Table(format, path, catalog, s3, RECORDS)
        self._output: dict[str, Any] = {"format": format, "path": path, "partitionBy": ["half"]}
        if format == "Iceberg":
            self._output["table"] = ICEBERG_TABLE
        if s3 and lab.gate:
            endpoint = f"http://127.0.0.1:{lab.gate.port}"
            self._output["s3"] = {"endpoint": endpoint, "pathStyle": True, "region": "us-east-1"}
        if catalog:
            self._output["catalog"] = {"type": "JDBC", "uri": catalog.uri}
        publish(lab.bootstrap, self._topic, [[]] * PARTITIONS)

    def go(self, rounds: int) -> None:
        self._round(0, None)  # creates the table
        self._usual = self._round(1, None)
        for number in range(2, rounds + 2):
            self._round(number, next(self._faults))

    def _round(self, number: int, fault: Fault[Kind] | None) -> float:
        """Run one round; return the run's time in s."""
        if fault is not None and fault.kind in RESTORED:
            self._lab.copy(fault.kind, self._output)
        self._produce(number)
        self._lab.prepare(fault.kind if fault else None, self._run(number))
        reader = Reader(self._table)
        begun = time.monotonic()
        striking = None
        with reader.reading():
            if fault is not None and fault.kind not in RESTORED:
                self._ended.clear()
                striking = threading.Thread(target=self._strike, args=(fault.moment * self._usual, fault))
                striking.start()
            outcome = self._lab.load()
            self._ended.set()
            taken = time.monotonic() - begun
            if striking is not None:
                striking.join()
        wrong = ""
        if fault is not None and fault.kind in RESTORED:
            wrong = self._lab.restore(fault.kind, lambda: self._produce(-1))
            self.struck[fault.kind.text, False] += 1
        said = self._judge(number, reader, outcome.rows, wrong)
        what = f"{fault.kind.text} at {fault.moment:.0%} for {fault.seconds} s" if fault else "no fault"
        told = "".join(f"; {error}" for error in outcome.errors)
        print(
            f"{self._table.format} {number}: {what}: {outcome.attempts} attempts, {taken:.1f} s,"
            f" {reader.reads} reads{told}{': VIOLATION: ' + said if said else ''}",
            flush=True,
        )
        return taken

    def _strike(self, moment: float, fault: Fault[Kind]) -> None:
        time.sleep(moment)
        is_during = not self._ended.is_set()
        if self._lab.strike(fault.kind, fault.seconds):
            self.struck[fault.kind.text, is_during] += 1

    def _judge(self, number: int, reader: Reader, rows: int | None, wrong: str) -> str:
        found = [wrong] if wrong else []
        found += [] if rows == PARTITIONS * RECORDS else [f"the run reports {rows} rows"]
        found += [self._table.wrong(number + 1), *sorted(reader.half)]
        if self._lab.s3 is None:
            found += [f"a reader failed: {error}" for error in reader.errors]
        said = "; ".join(one for one in found if one)
        if said:
            self.violations.append(f"{self._table.format} {number}: {said}")
        return said

    def _produce(self, number: int) -> None:
        producer = Producer({"bootstrap.servers": self._lab.bootstrap})
        for partition in range(PARTITIONS):
            for record in range(RECORDS):
                value = {"half": record % 2, "number": number}
                producer.produce(self._topic, json.dumps(value).encode(), None, partition)
        left = producer.flush(60)
        assert left == 0, f"{left} records of round {number} were not acknowledged"

    def _run(self, number: int) -> dict[str, Any]:
        part = {"topic": self._topic, "from": number * RECORDS, "until": (number + 1) * RECORDS}
        return {
            "name": f"run-{number:04}",
            "bootstrap": self._lab.bootstrap,
            "offsets": [{**part, "partition": partition} for partition in range(PARTITIONS)],
            "value": {"format": "JSON", "schema": "half INT, number INT"},
            "output": self._output,
        }


def main(given: list[str]) -> int:
    """Return 0 if every invariant held, 1 if one did not, 2 if the rounds could not start."""
    wanted = arguments(given)
    if shutil.which("java") is None:
        print("faults: Spark needs Java 17: install it (Debian: openjdk-17-jdk-headless)", file=sys.stderr)
        return 2
    spark_jars()
    out = (wanted.out or Path(tempfile.mkdtemp(prefix="millstream-loads-"))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    print(f"faults: loads in {out}; --seed {wanted.seed} has the same faults", flush=True)
    violations: list[str] = []
    struck: Counter[tuple[str, bool]] = Counter()
    with contextlib.ExitStack() as stack:
        lab, kinds = stack.enter_context(_laboratory(wanted, out))
        for format in wanted.format or FORMATS:
            rounds = Rounds(lab, format, draw(wanted.seed, kinds))
            rounds.go(wanted.rounds)
            violations += rounds.violations
            struck += rounds.struck
    print(f"{'struck':20}{'in a run':>10}{'after it':>10}")
    for kind in sorted({kind for kind, _ in struck}):
        print(f"{kind:20}{struck[kind, True]:10}{struck[kind, False]:10}")
    print(f"violations: {len(violations)}")
    for violation in violations:
        print(f"  {violation}")
    return 1 if violations else 0


@contextlib.contextmanager
def _laboratory(wanted: argparse.Namespace, out: Path) -> Iterator[tuple[Loading, Sequence[Kind]]]:
    """The processes, and the faults that may strike them."""
    with contextlib.ExitStack() as stack:
        if wanted.operator:
            yield stack.enter_context(contextlib.closing(OperatedLab(out))), BY_OPERATOR
            return
        s3: S3Server | None = None
        catalog: Postgres | None = None
        if wanted.where == "s3":
            s3 = stack.enter_context(s3_server(out / "s3.log"))
            catalog = stack.enter_context(postgres())
        broker = stack.enter_context(BrokerProcess(out / "broker").keep_port())
        lab = stack.enter_context(contextlib.closing(Lab(out, broker, s3, catalog)))
        if lab.gate:
            stack.callback(lab.gate.shut)
        yield lab, IN_S3 if s3 else IN_FOLDER
