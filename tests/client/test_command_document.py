"""docs/command.md and the parser say the same."""

from __future__ import annotations

from pathlib import Path

from millstream_harness.command_document import page


def test_the_page_is_as_the_parser() -> None:
    assert (Path(__file__).parents[2] / "docs/command.md").read_text() == page(), "make docs/command.md"
