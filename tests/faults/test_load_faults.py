"""A few rounds of what `make faults FAULTS=loads` does for longer: each row is there once."""

from __future__ import annotations

import os
import re
from itertools import islice
from pathlib import Path

import pytest

from millstream_faults.draws import draw
from millstream_faults.loads.plan import Kind
from millstream_harness.faults_command import check_refusal, run
from millstream_harness.spark import spark_jars

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
]

SEED = os.environ.get("MILLSTREAM_SEED", "4")
ROUNDS = 1
OPERATOR_SEED = "13"
"""Its first fault kills the broker early in the run, and then the operator."""


@pytest.mark.timeout(1200)
def test_loads_of_each_format_that_are_struck(tmp_path: Path) -> None:
    spark_jars()
    few = ["--rounds", str(ROUNDS), "--seed", SEED, "--out", str(tmp_path / "run")]
    done = run("loads", *few, timeout=1180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "violations: 0" in done.stdout
    for format in ("Parquet", "Delta", "Iceberg"):
        told = re.findall(rf"^{format} \d: .* (\d+) reads", done.stdout, re.MULTILINE)
        assert len(told) == ROUNDS + 2
        assert all(int(reads) > 0 for reads in told), "the table was read meanwhile"


@pytest.mark.timeout(1200)
def test_a_load_whose_operator_is_struck(tmp_path: Path) -> None:
    one = ["--operator", "--format", "Delta", "--rounds", "1", "--seed", OPERATOR_SEED]
    done = run("loads", *one, "--out", str(tmp_path / "run"), timeout=1180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "violations: 0" in done.stdout
    assert "Delta 2: kill broker at 13%" in done.stdout


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
        (["--operator", "--where", "s3"], "not allowed with argument"),
    ):
        check_refusal(["loads", *given], said)
