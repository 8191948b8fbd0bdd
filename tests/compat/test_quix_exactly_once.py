"""Quix Streams with exactly-once counts each word once, while brokers and the application are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_harness.environments import python_of
from millstream_harness.word_count import counts_each_word_once

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "quix" / "word_count.py"


def test_each_word_is_counted_once(tmp_path: Path) -> None:
    python = str(python_of("quix"))
    counts_each_word_once(
        tmp_path, lambda bootstrap: [python, str(PROGRAM), bootstrap, str(tmp_path / "state")]
    )
