#!/usr/bin/env python3
"""Checks a commit's message: the subject is `area: what changed`, in fewer than 72 characters.

Usage: commit_message.py FILE, as git's hook commit-msg calls it. An area is any word: `git log` shows those in use.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

MOST = 71
SUBJECT = re.compile(r"[A-Za-z][\w ,./-]*: \S.*")
WRITTEN_BY_GIT = ("Merge ", "Revert ", "fixup! ", "squash! ", "amend! ")


def mistakes(message: str) -> list[str]:
    """What is wrong, each with what to do; empty if nothing is."""
    subject, *rest = message.partition("# ------------------------ >8")[0].splitlines() or [""]
    body = [line for line in rest if not line.startswith("#")]
    if subject.startswith(WRITTEN_BY_GIT):
        return []
    found = []
    if not SUBJECT.fullmatch(subject):
        found.append(
            f"the subject {subject!r} names no area: write `area: what changed`, as `log: check rolled segments`"
        )
    if len(subject) > MOST:
        found.append(
            f"the subject has {len(subject)} characters of at most {MOST}: move details into the body"
        )
    if subject.endswith("."):
        found.append("the subject ends with a full stop: remove it")
    if body and body[0].strip():
        found.append("the second line is not empty: leave it empty between subject and body")
    return found


if __name__ == "__main__":
    wrong = mistakes(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for mistake in wrong:
        print(f"commit message: {mistake}", file=sys.stderr)
    sys.exit(1 if wrong else 0)
