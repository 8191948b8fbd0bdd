"""docs/resources.md is what the CRDs say."""

from __future__ import annotations

from pathlib import Path

from millstream_operator.document import document

ROOT = Path(__file__).resolve().parents[2]


def test_the_committed_page_is_current() -> None:
    assert (ROOT / "docs/resources.md").read_text() == document(), (
        "write it anew: python -m millstream_operator.document > docs/resources.md"
    )
