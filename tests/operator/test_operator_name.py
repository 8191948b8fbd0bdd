"""The folder operator/ never stands in for Python's own module of that name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "start", [ROOT, ROOT / "operator", ROOT / "operator/src"], ids=["root", "operator", "src"]
)
def test_import_operator_is_the_standard_library(start: Path) -> None:
    """Wherever Python starts in the repository, and with the root on the path, `operator` is the standard module."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import operator, millstream_operator; print(operator.__file__)"
    said = subprocess.run(
        [sys.executable, "-c", code, str(start)], cwd=start, capture_output=True, text=True, check=True
    ).stdout
    assert str(ROOT) not in said.replace(sys.prefix, "")


def test_operator_is_no_package_and_holds_no_tests() -> None:
    outside = [
        path for path in (ROOT / "operator").rglob("*.py") if "src" not in path.relative_to(ROOT).parts
    ]
    assert [path for path in outside if path.name in ("__init__.py", "conftest.py")] == []
    assert [path for path in outside if path.name.startswith("test_")] == []
    assert not (ROOT / "operator/src/__init__.py").exists()


def test_the_root_is_not_on_the_path() -> None:
    assert str(ROOT) not in sys.path
    assert not (ROOT / "__init__.py").exists()
