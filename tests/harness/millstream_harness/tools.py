"""Tools that some tests need beyond the prerequisites: without one a test is skipped, except in CI.

Every machine has git, make, Python 3.11, Java 17 and Maven. A test that needs more says ``require("kcat")``
first. On a user's machine without it, the test is skipped; with ``CI=true`` in the environment it fails,
so no test is lost unnoticed.
"""

from __future__ import annotations

import os
import shutil

import pytest

INSTALL = {
    "java": "Java 17 (Debian: apt-get install openjdk-17-jdk-headless)",
    "javac": "the compiler of Java 17 (Debian: apt-get install openjdk-17-jdk-headless)",
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
    """Skip the running test because ``what`` is missing; fail it in CI."""
    line = f"not installed: {INSTALL.get(what, what)}"
    if in_ci():
        pytest.fail(line, pytrace=False)
    pytest.skip(line)


def require(tool: str) -> str:
    """The path of an executable; without it the test is skipped (in CI: fails) with an installation hint."""
    path = shutil.which(tool)
    if path is None:
        missing(tool)
    assert path is not None
    return path
