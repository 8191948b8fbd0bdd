"""The Kubernetes tutorial, as a reader runs it; it installs and removes the chart itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream_harness.chart import SYSTEM, gone, install, remove
from millstream_harness.kube import Namespace, run
from millstream_harness.kubernetes_pages import TUTORIAL


@pytest.fixture
def without_millstream(millstream: Namespace) -> Iterator[None]:
    """Remove the release first; afterwards, remove a failing page's remains, and restore the other tests' release."""
    remove()
    yield
    remove()
    run("kubectl", "delete", "namespace", "shop", "--ignore-not-found", "--wait=false")
    gone("shop")
    install(default_cluster=False)


def test_the_page_runs_as_it_says(without_millstream: None, tmp_path: Path) -> None:
    """The images are already built and, on kind, loaded."""
    TUTORIAL.run(tmp_path)
    assert not run("kubectl", "get", "namespace", SYSTEM.name, "--ignore-not-found")
