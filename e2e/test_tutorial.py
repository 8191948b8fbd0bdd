"""The Kubernetes tutorial, as a reader runs it: the first test, because the page installs and removes the chart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream_harness.chart import SYSTEM, gone, remove
from millstream_harness.kube import run
from millstream_harness.kubernetes_pages import TUTORIAL

pytestmark = pytest.mark.core


@pytest.fixture
def without_millstream(cluster: None) -> Iterator[None]:
    """Remove the remains of an earlier run first; afterwards, those of a failing page."""
    remove()
    yield
    remove()
    run("kubectl", "delete", "namespace", "shop", "--ignore-not-found", "--wait=false")
    gone("shop")


def test_the_page_runs_as_it_says(without_millstream: None, tmp_path: Path) -> None:
    """The images are already built and, on kind, loaded."""
    TUTORIAL.run(tmp_path)
    assert not run("kubectl", "get", "namespace", SYSTEM.name, "--ignore-not-found")
