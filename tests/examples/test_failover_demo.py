"""`make demo-failover` fails over from a lost cluster, and its account adds up."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from millstream_harness.java import ROOT

pytestmark = pytest.mark.soak

TIMEOUT_S = 500
FOLDER = ROOT / "examples/failover"


def test_removing_the_sign_before_promote_gives_a_promotion() -> None:
    """As the file says; the demo does the same."""
    text = (FOLDER / "mirror.yaml").read_text()
    assert "remove the # before promote" in text
    (line,) = re.findall(r"^ *# *promote: .*$", text, re.MULTILINE)
    changed = text.replace(line, line.replace("#", "", 1))
    plain, promotes = yaml.safe_load(text), yaml.safe_load(changed)
    assert promotes["spec"].pop("promote") == {"requestId": "west-is-lost"}
    assert promotes == plain
    ((before, after),) = re.findall(r'text\.replace\("(.+)", "(.+)"\)', (FOLDER / "failover.py").read_text())
    assert text.replace(before, after) == changed


@pytest.mark.timeout(600)
def test_the_failover_adds_up(tmp_path: Path) -> None:
    """Runs the Makefile's command in an empty folder; SIGTERM at the deadline makes it stop all its processes."""
    makefile = (ROOT / "Makefile").read_text()
    (command,) = re.findall(r"^demo-failover: .*\n\t@\$\(BIN\)/python (\S+)$", makefile, re.M)
    demo = subprocess.Popen(
        [sys.executable, ROOT / command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = demo.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        demo.terminate()
        output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 0, output
    rows = {
        name: [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", rest)]
        for name, rest in re.findall(r"^failover:   (\w+)  +(\d.*)$", output, re.M)
    }
    (last,) = re.findall(r"^failover: produced (.*)$", output.splitlines()[-1])
    produced, kept, missing, consumed = (
        int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", last)
    )
    assert rows["produced"][0] == produced == kept + missing
    assert rows["missing"][0] == missing > 0, "the link fails before west does"
    assert consumed == kept
    assert rows["consumed"] == [sum(rows["consumed"][1:]), *rows["consumed"][1:]]
    assert rows["consumed"][0] == kept + rows["missing"][1] + rows["repeated"][0]
    points = re.findall(r"partition \d: mirrored up to offset ([\d,]+);", output)
    assert sum(int(point.replace(",", "")) for point in points) == rows["mirrored"][0]
