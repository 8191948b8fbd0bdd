"""Runs a page of documentation: its fenced blocks, in order, in a folder, as a reader would.

    ```sh                        runs in bash; variables and the folder last until the end of the page
    ```python                    runs with the environment's python
    ```yaml title="a/b.yaml"     is written to that file; so is any language with a title
    ```text                      right after one that ran: its output

In expected output, a line `…` matches any lines and `…` in a line any text; runs of spaces count as one. A block
of another language without a title is not run. A failure names the page and the line.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from millstream_harness.java import ROOT

TIMEOUT_S = 300.0
_FENCE = re.compile(
    r'^(?P<indent> *)(?P<marks>```+)(?P<language>\w*)(?: title="(?P<title>[^"]+)")? *\n'
    r"(?P<text>.*?)^(?P=indent)(?P=marks) *$",
    re.MULTILINE | re.DOTALL,
)
_RUN = ("sh", "python")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. ``line`` is that of its first mark; ``follows``: whether only blank lines precede it."""

    language: str
    title: str
    text: str
    line: int
    follows: bool


class PageFailed(AssertionError):
    """A block failed, or its output differs from the page."""


def blocks(markdown: str) -> Iterator[Block]:
    """The page's fenced blocks, in order."""
    end = 0
    for found in _FENCE.finditer(markdown):
        indent = len(found["indent"])
        text = "".join(line[indent:] if line.strip() else "\n" for line in found["text"].splitlines(True))
        line = markdown.count("\n", 0, found.start()) + 1
        between = markdown[end : found.start()]
        yield Block(found["language"], found["title"] or "", text, line, end > 0 and not between.strip())
        end = found.end()


def run_page(
    page: Path,
    folder: Path,
    *,
    replace: Mapping[str, str] | None = None,
    leave_out: Collection[str] = (),
    env: Mapping[str, str] | None = None,
) -> int:
    """Run the page in a folder, where ``millstream`` is the repository; returns how many blocks ran.

    ``millstream`` is a link, so a page may leave it by ``cd ..``, but must not name other files by ``..`` from there.
    ``replace``: texts of the page to replace, such as a port that may be taken.
    ``leave_out``: titles of blocks for other surroundings, such as ``kind``.
    """
    text = page.read_text()
    for old, new in (replace or {}).items():
        text = text.replace(old, new)
    (folder / "millstream").symlink_to(ROOT)
    path = os.pathsep.join([str(ROOT / ".venv/bin"), os.environ["PATH"]])
    shell = _Shell(folder, {**os.environ, "PATH": path, **(env or {})})
    ran, output = 0, None
    for block in blocks(text):
        where = f"{page.relative_to(ROOT) if page.is_relative_to(ROOT) else page.name}:{block.line}"
        if block.title in leave_out and block.title:
            output = None
            continue
        if block.language == "text" and block.follows and output is not None:
            if not matches(block.text, output):
                raise PageFailed(f"{where}: the output is not as the page says:\n{output}")
            output = None
            continue
        output = None
        if block.title:
            shell.write(block.title, block.text)
        elif block.language in _RUN:
            code = block.text if block.language == "sh" else f"python - <<'EOF'\n{block.text}EOF\n"
            status, output = shell.run(code)
            if status != 0:
                raise PageFailed(f"{where}: exit status {status}:\n{block.text}\n{output}")
            ran += 1
    return ran


def matches(expected: str, output: str) -> bool:
    """Whether an output matches, with `…` for any text."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else _line(line) + r" *\n" for line in expected.strip().splitlines()
    )
    return re.fullmatch(pattern, output.strip() + "\n") is not None


def _line(line: str) -> str:
    parts = [r" +".join(map(re.escape, part.split(" "))) for part in re.sub(" +", " ", line).split("…")]
    return ".*".join(parts)


class _Shell:
    """bash, a process for each block; variables and the working folder carry over."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._state = folder / ".state"
        self._state.write_text(f"cd {shlex.quote(str(folder))}\n")

    def run(self, code: str) -> tuple[int, str]:
        """Exit status and output (stdout and stderr)."""
        keep = f'{{ export -p; printf "cd %q\\n" "$PWD"; }} > {shlex.quote(str(self._state))}'
        script = f". {shlex.quote(str(self._state))}\nset -aeuo pipefail\n{code}\n{keep}\n"
        done = subprocess.run(
            ["bash", "-c", script],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return done.returncode, done.stdout

    def write(self, name: str, text: str) -> None:
        """Write a file, relative to the shell's working folder."""
        status, where = self.run("pwd")
        assert status == 0, where
        file = Path(where.strip()) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
