"""A crash writes no memory anywhere, with its passwords and keys."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream_harness.broker import BrokerProcess

pytestmark = pytest.mark.process

CRASH = "import resource, os; {}; os.chdir({!r}); os.abort()"
ALLOW = "resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))"
FORBID = f"{ALLOW}; from millstream_process import core_dumps; core_dumps.forbid()"


def dumps_core(first: str, folder: Path) -> bool:
    """Whether a program that crashes after these statements does."""
    script = CRASH.format(first, str(folder))
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", script], os.environ)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status)
    return os.WCOREDUMP(status)


def test_a_crash_leaves_no_core(tmp_path: Path) -> None:
    if not dumps_core(ALLOW, tmp_path):
        pytest.skip("this machine dumps no core")
    for path in tmp_path.iterdir():
        path.unlink()
    assert not dumps_core(FORBID, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_broker_forbids_core_dumps(start_broker_process: Callable[..., BrokerProcess]) -> None:
    broker = start_broker_process()
    limits = Path(f"/proc/{broker.process.pid}/limits").read_text()
    (line,) = (line for line in limits.splitlines() if line.startswith("Max core file size"))
    assert line.split()[4:6] in (["1", "1"], ["0", "0"])
