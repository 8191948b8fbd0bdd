"""Pages of documentation that run on a laptop, as a reader runs them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream_harness.broker import fixed_port
from millstream_harness.java import ROOT
from millstream_harness.local import LOCAL
from millstream_harness.pages import run_page
from millstream_harness.tools import require

pytestmark = pytest.mark.soak

PAGES = {
    "docs/tutorials/laptop.md": (),
    "docs/tutorials/data-engineer.md": ("java",),
    "docs/tutorials/failover.md": (),
    "docs/how-to/connect.md": ("java", "go", "npm"),
    "docs/how-to/backup.md": ("java",),
    "docs/how-to/ci.md": (),
    "docs/how-to/gitops.md": (),
    "docs/how-to/migrate.md": ("java", "mvn"),
    "docs/local.md": (),
    "docs/how-to/fail-back.md": (),
}
"""Pages, and the tools that each needs."""
ELSEWHERE = {"docs/how-to/gitops.md": {"On Kubernetes"}, "docs/how-to/migrate.md": {"On Kubernetes"}}
"""Sections that e2e runs."""
PORTS = ("9092", "9093", "9192", "9404")
"""Ports in these pages; the test replaces them with free ones."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The page's folder. Anything that a failing page leaves running is stopped."""
    yield tmp_path
    for state in list(tmp_path.rglob("state.json")):
        subprocess.run([*LOCAL, "down", "--data", str(state.parent)], check=True, timeout=300)
    for process in processes_in(tmp_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def processes_in(folder: Path) -> list[int]:
    """Processes whose working directory is the folder or in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").resolve(strict=True).is_relative_to(folder):
                found.append(int(process.name))
    return found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_as_it_says(page: str, folder: Path) -> None:
    for tool in PAGES[page]:
        require(tool)
    ports = {port: str(fixed_port()) for port in PORTS}
    assert run_page(ROOT / page, folder, replace=ports, leave_out=ELSEWHERE.get(page, ())) > 0
    assert not list(folder.rglob("state.json")), "the page's last step deletes its data"
