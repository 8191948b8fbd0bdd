"""The CRDs of Kubeflow's Spark operator, from its Go module."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from millstream_harness.tools import require

MODULE = "github.com/kubeflow/spark-operator/v2@v2.3.0"


def definition(plural: str) -> Path:
    """The file with the CRD of a kind, such as `sparkapplications`."""
    download = [require("go"), "mod", "download", "-json", MODULE]
    told = subprocess.run(download, capture_output=True, check=True).stdout
    return Path(json.loads(told)["Dir"]) / "config/crd/bases" / f"sparkoperator.k8s.io_{plural}.yaml"


def schema(plural: str) -> dict[str, Any]:
    """The OpenAPI schema of a kind, in its version v1beta2."""
    crd = yaml.load(definition(plural).read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    version = next(entry for entry in crd["spec"]["versions"] if entry["name"] == "v1beta2")
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found
