"""The address of a driver in a pod: Kubernetes may have IPv6 alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream_harness.java import ROOT
from millstream_harness.spark import spark_jars

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]
PROGRAM = """
from millstream_jobs.load import open_session
spark = open_session("address", ["Parquet"])
print("rows:", spark.range(7).count(), "host:", spark.conf.get("spark.driver.host"))
spark.stop()
"""


def test_driver_with_an_ipv6_address(tmp_path: Path) -> None:
    """As a Job starts it, with `$(POD_IP)` in the arguments, which is without brackets."""
    spark_jars()
    program = tmp_path / "address.py"
    program.write_text(PROGRAM)
    ended = subprocess.run(
        [
            str(Path(sys.executable).with_name("spark-submit")),
            *("--master", "local[1]", "--driver-memory", "512m"),
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=::1"),
            *("--conf", "spark.driver.bindAddress=::1", str(program)),
        ],
        env={**os.environ, "POD_IP": "::1", "PYSPARK_PYTHON": sys.executable},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "rows: 7 host: [::1]" in ended.stdout, ended.stderr[-2000:]
