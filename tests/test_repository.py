"""What holds for the repository as a whole: one version, and documents whose links lead somewhere."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "broker-image": "millstream_broker",
    "client": "millstream",
    "operator": "millstream_operator",
    "spark-operator-jobs": "millstream_jobs",
}
DOCUMENTS = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md") for path in ROOT.glob(pattern)
)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def test_everything_carries_one_version() -> None:
    versions = {}
    for folder, module in PACKAGES.items():
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
        versions[folder] = project["version"]
        versions[module] = importlib.import_module(module).__version__
    chart = yaml.safe_load((ROOT / "charts/millstream/Chart.yaml").read_text())
    versions |= {"chart": chart["version"], "appVersion": chart["appVersion"]}
    assert len(set(versions.values())) == 1, versions


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(document: Path) -> None:
    for link in LINK.findall(document.read_text()):
        assert (document.parent / link).exists(), f"{document.name}: {link}"
