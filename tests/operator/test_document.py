"""Documents and code agree about the resources."""

from __future__ import annotations

import re
from pathlib import Path

from millstream_harness.loads import allowed_conf
from millstream_operator.document import document
from millstream_operator.models.pods import ALLOWED_ENV

ROOT = Path(__file__).resolve().parents[2]


def test_the_committed_page_is_current() -> None:
    assert (ROOT / "docs/resources.md").read_text() == document(), (
        "write it anew: python -m millstream_operator.document > docs/resources.md"
    )


def test_the_page_on_security_lists_the_variables_that_sparks_pods_may_have() -> None:
    page = (ROOT / "docs/security.md").read_text()
    listed = page.partition("so no variable may load code there: loads accept")[2].partition(" only.")[0]
    assert tuple(re.findall("`(.*?)`", listed)) == ALLOWED_ENV


def test_the_page_on_security_lists_the_keys_that_spark_may_have() -> None:
    page = (ROOT / "docs/security.md").read_text()
    listed = page.partition("stands for all keys with that prefix:")[2].partition("\n- ")[0]
    assert tuple(re.findall("`(.*?)`", listed)) == allowed_conf()
