"""What some tests need beyond what every machine has: without it they are skipped, but never in CI.

Every machine has git, make, Python 3.11, Java 17 and Maven. A test that needs more says ``require("kcat")``
first. On a user's machine without it the test is skipped; where the environment says ``CI=true`` it fails,
so that nothing goes untested unseen.
"""

from __future__ import annotations

import os
import shutil

import pytest

INSTALL = {
    "java": "Java 17 (Debian: apt-get install openjdk-17-jdk-headless)",
    "mvn": "Maven (Debian: apt-get install maven)",
    "kcat": "kcat (Debian: apt-get install kcat)",
    "node": "Node.js 20 or newer (https://nodejs.org)",
    "npm": "npm, which comes with Node.js 20 (https://nodejs.org)",
    "go": "Go 1.24 or newer (https://go.dev/dl)",
    "kubectl": "kubectl and a Kubernetes that KUBECONFIG names",
    "prometheus": "Prometheus (Debian: apt-get install --no-install-recommends prometheus, or https://prometheus.io/download)",
    "promtool": "promtool, which comes with Prometheus",
    "helm": "Helm 3 (https://helm.sh)",
}


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() == "true"


def missing(what: str) -> None:
    """Skip the running test because ``what`` is not here; fail it in CI."""
    line = f"not installed: {INSTALL.get(what, what)}"
    if in_ci():
        pytest.fail(line, pytrace=False)
    pytest.skip(line)


def require(tool: str) -> str:
    """The path of an executable; without it the test is skipped (in CI: fails) and says what to install."""
    path = shutil.which(tool)
    if path is None:
        missing(tool)
    assert path is not None
    return path
