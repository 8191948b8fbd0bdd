"""`millstream local status` shows the strays of a Cluster until they are removed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millstream_harness.command import millstream
from millstream_harness.local import Sandbox

pytestmark = pytest.mark.soak

STRAY = "orders-0.00000000000000000000000000000005-stray"


def strays(sandbox: Sandbox) -> list[dict[str, Any]]:
    shown = json.loads(sandbox.run("status", "-o", "json").stdout)
    (cluster,) = [one for one in shown["resources"] if one["kind"] == "Cluster"]
    return [one for one in cluster["status"]["conditions"] if one["type"] == "Strays"]


def test_strays_are_shown_until_they_are_removed(sandbox: Sandbox) -> None:
    sandbox.cluster()
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert strays(sandbox) == []
    sandbox.runtime().down()
    path = sandbox.data / "clusters/west/0" / STRAY
    path.mkdir()
    (path / "00000000000000000000.log").write_bytes(bytes(2048))
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    (shown,) = strays(sandbox)
    assert (shown["status"], shown["reason"]) == ("True", "StrayLogs")
    assert "1 log with 2.0 KiB on broker 0 fit no topic" in shown["message"]
    assert f"Cluster west: {shown['message']}" in sandbox.run("status").stdout
    bootstrap = sandbox.found("Cluster", "west")["status"]["bootstrap"]
    ended = millstream("stray", "remove", "--all", "--yes", bootstrap=bootstrap)
    assert ended.returncode == 0, ended.stderr
    assert not path.exists()
    assert strays(sandbox) == []
    sandbox.runtime().down(delete_data=True)
