"""Runs a page of documentation: its fenced blocks, in order, in a folder, as a reader would.

    ```sh                        runs in bash; variables, functions and the folder last until the end of the page
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
_HEADING = re.compile(r"^(#+) +(.+?) *$", re.MULTILINE)
_RUN = ("sh", "python")
SITE = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
]
"""Every page of the documentation."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. ``line`` is that of its first mark; ``follows``: whether only blank lines precede it.

    ``headings``: those above it, from the page's title down.
    """

    language: str
    title: str
    text: str
    line: int
    follows: bool
    headings: tuple[str, ...]

    def is_in(self, sections: Collection[str], leave_out: Collection[str]) -> bool:
        """Whether it is below one of the sections, if there are any, and not left out by its title or a heading."""
        left_out = bool(self.title and self.title in leave_out) or not set(self.headings).isdisjoint(
            leave_out
        )
        return not left_out and (not sections or not set(self.headings).isdisjoint(sections))


class PageFailed(AssertionError):
    """A block failed, or its output differs from the page."""


def blocks(markdown: str) -> Iterator[Block]:
    """The page's fenced blocks, in order."""
    end = 0
    headings: list[tuple[int, str]] = []
    for found in _FENCE.finditer(markdown):
        indent = len(found["indent"])
        text = "".join(line[indent:] if line.strip() else "\n" for line in found["text"].splitlines(True))
        line = markdown.count("\n", 0, found.start()) + 1
        between = markdown[end : found.start()]
        for heading in _HEADING.finditer(between):
            level = len(heading[1])
            headings = [*(one for one in headings if one[0] < level), (level, heading[2])]
        above = tuple(name for _, name in headings)
        yield Block(
            found["language"], found["title"] or "", text, line, end > 0 and not between.strip(), above
        )
        end = found.end()


def unfenced(markdown: str) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^( *)```.*?^\1```", "", markdown, flags=re.MULTILINE | re.DOTALL)


def commands(page: Path, program: str, *, in_blocks: bool = True) -> Iterator[list[str]]:
    """The words of each command of a program: those of code in sentences and, unless told, of blocks."""
    text = page.read_text()
    fences = re.findall(r"^ *```(sh|properties)?(?: title=.*)?\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    shown = [block for language, block in fences if language != "properties"]
    shown += re.findall(r"^(?: {4}\S.*\n)+", text, re.MULTILINE)
    lines = [line for block in shown for line in block.replace("\\\n", " ").splitlines()] if in_blocks else []
    lines += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", unfenced(text))]
    for line in lines:
        for part in re.split(r"(?:&&|\|\|?|;|\$\()", line.partition(" #")[0]):
            words = part.split()
            while words and re.fullmatch(r"\$|until|do|[A-Z_]+=\S*", words[0]):
                words.pop(0)
            if words and words[0] == program:
                yield words[1:]


def run_page(
    page: Path,
    folder: Path,
    *,
    replace: Mapping[str, str] | None = None,
    sections: Collection[str] = (),
    leave_out: Collection[str] = (),
    env: Mapping[str, str] | None = None,
) -> int:
    """Run the page in a folder, where ``millstream`` is the repository; returns how many blocks ran.

    ``millstream`` is a link, so a page may leave it by ``cd ..``, but must not name other files by ``..`` from there.
    A second run in the same folder continues with the first one's variables, functions and working folder.
    ``replace``: texts of the page to replace, such as a port that may be taken.
    ``sections``: headings; only what is below them is run, in the page's order.
    ``leave_out``: titles of blocks, or headings, for other surroundings, such as ``kind``.
    """
    text = page.read_text()
    found = {heading for block in blocks(text) for heading in block.headings}
    assert set(sections) <= found, f"{page.name} has no blocks below {set(sections) - found}"
    for old, new in (replace or {}).items():
        text = text.replace(old, new)
    shell = _shell(folder, env)
    ran, output = 0, None
    for block in blocks(text):
        where = f"{page.relative_to(ROOT) if page.is_relative_to(ROOT) else page.name}:{block.line}"
        if not block.is_in(sections, leave_out):
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


def run_command(
    page: Path,
    folder: Path,
    command: str,
    *,
    replace: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a command that the page shows as code in a sentence or a table, and return its output.

    It continues the run of a page in this folder. ``replace``: placeholders in it.
    """
    command = shown(page, command, replace)
    status, output = _shell(folder, env).run(command)
    if status != 0:
        raise PageFailed(f"{page.name}: exit status {status}:\n{command}\n{output}")
    return output


def shown(page: Path, command: str, replace: Mapping[str, str] | None = None) -> str:
    """The command, which the page shows as code in a sentence or a table, with its placeholders replaced."""
    found = {" ".join(code.split()) for code in re.findall(r"`([^`]+)`", unfenced(page.read_text()))}
    assert command in found, f"{page.name} does not show: {command}"
    for old, new in (replace or {}).items():
        command = command.replace(old, new)
    return command


def _shell(folder: Path, env: Mapping[str, str] | None = None) -> _Shell:
    if not (folder / "millstream").is_symlink():
        (folder / "millstream").symlink_to(ROOT)
    path = os.pathsep.join([str(ROOT / ".venv/bin"), os.environ["PATH"]])
    return _Shell(folder, {**os.environ, "PATH": path, **(env or {})})


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
        if not self._state.exists():
            self._state.write_text(f"cd {shlex.quote(str(folder))}\n")

    def run(self, code: str) -> tuple[int, str]:
        """Exit status and output (stdout and stderr)."""
        keep = f'{{ export -p; declare -f; printf "cd %q\\n" "$PWD"; }} > {shlex.quote(str(self._state))}'
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
