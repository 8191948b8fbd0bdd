"""A few rounds of what `make faults FAULTS=loads` does for longer: each row is there once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from millstream_faults.draws import draw
from millstream_faults.loads.plan import Kind
from millstream_harness.spark import spark_jars

SEED = os.environ.get("MILLSTREAM_SEED", "4")
ROUNDS = 1
FOLDERS = [Path(__file__).parent, Path(__file__).parents[1] / "harness"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, FOLDERS))}
COMMAND = [sys.executable, "-P", "-m", "millstream_faults", "loads"]


@pytest.mark.timeout(600)
def test_loads_of_each_format_that_are_struck(tmp_path: Path) -> None:
    spark_jars()
    done = subprocess.run(
        [*COMMAND, "--rounds", str(ROUNDS), "--seed", SEED, "--out", str(tmp_path / "run")],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "violations: 0" in done.stdout
    for format in ("Parquet", "Delta", "Iceberg"):
        told = re.findall(rf"^{format} \d: .* (\d+) reads", done.stdout, re.MULTILINE)
        assert len(told) == ROUNDS + 2
        assert all(int(reads) > 0 for reads in told), "the table was read meanwhile"


def test_a_seed_has_its_faults_and_each_kind_comes() -> None:
    kinds = list(Kind)
    faults = list(islice(draw(7, kinds), 3 * len(kinds)))
    assert faults == list(islice(draw(7, kinds), 3 * len(kinds)))
    assert faults != list(islice(draw(8, kinds), 3 * len(kinds)))
    for begin in range(0, len(faults), len(kinds)):
        assert {fault.kind for fault in faults[begin : begin + len(kinds)]} == set(kinds)
    assert all(fault.kind.shortest <= fault.seconds <= fault.kind.longest for fault in faults)


def test_what_it_does_not_take(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for given, said in (
        (["--rounds", "0"], "0: is less than 1"),
        (["--out", str(tmp_path)], "something in it"),
    ):
        done = subprocess.run(
            [*COMMAND, *given], env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr
