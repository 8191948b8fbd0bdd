"""Commands on pages, in blocks and in sentences, are possible: their names, options, targets, kinds and labels exist.

Tests run every block with kubectl or helm (e2e, listed in kubernetes_pages.py) and whole pages on a laptop
(tests/examples/test_pages.py). These tests check every other command on the site.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from millstream.cli import cli
from millstream_harness.kubernetes_pages import PARTS
from millstream_harness.pages import SITE as PAGES
from millstream_harness.pages import blocks, commands, unfenced

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = {
    "BENCH": "bench/src/millstream_bench/run.py",
    "DEFECTS": "tests/mutation/past_defects.py",
    "FAULTS": "tests/faults/millstream_faults",
    "MUTATION": "tests/mutation/mutate.py",
    "SCALE": "tests/harness/millstream_harness/operator_scale.py",
}
"""Sources with the options that a variable of the Makefile passes on."""
BUILT_IN = {
    *(
        "claim",
        "claims",
        "crd",
        "deployment",
        "event",
        "events",
        "job",
        "jobs",
        "lease",
        "leases",
        "namespace",
    ),
    *(
        "node",
        "nodes",
        "pod",
        "pods",
        "pvc",
        "secret",
        "statefulset",
        "statefulsets",
        "storageclass",
        "millstream",
    ),
}
"""Kinds of Kubernetes on our pages, and the category of our own."""
WITH_KIND = {"get", "describe", "delete", "annotate", "patch", "wait", "scale", "explain", "port-forward"}
WITH_VALUE = {
    "-n",
    "--namespace",
    "-l",
    "-o",
    "--selector",
    "--field-selector",
    "-f",
    "--type",
    "-p",
    "--tail",
}


OF_KUBERNETES = re.compile(r"(?:^\s*(?:\$ )?|[|;(&]\s*|\bdo )(?:kubectl|helm) ", re.MULTILINE)


def test_e2e_runs_every_block_with_kubectl_or_helm() -> None:
    """e2e/test_pages.py runs those in sentences that only look; the others are checked by name, below."""
    missing, found = [], 0
    for page in PAGES:
        name, text = str(page.relative_to(ROOT)), page.read_text()
        parts = [part for part in PARTS.values() if part.name == name]
        for block in blocks(text):
            if OF_KUBERNETES.search(block.text) and block.language in ("", "sh", "bash"):
                found += 1
                if block.language != "sh" or not any(part.has(block) for part in parts):
                    missing.append(f"{name}:{block.line}")
        indented = re.findall(r"^ {4}.*", unfenced(text), re.MULTILINE)
        assert not [line for line in indented if OF_KUBERNETES.search(line)], (
            f"{name}: use a block with ```sh"
        )
    assert missing == [], "add them to kubernetes_pages.py, and a test that runs them"
    assert found > 30


def test_e2e_runs_every_part_of_a_page_that_is_listed() -> None:
    tests = "\n".join(file.read_text() for file in sorted((ROOT / "e2e").glob("test_*.py")))
    assert [name for name in PARTS if f"    {name}.run(" not in tests] == []


def test_every_command_of_millstream_exists_with_its_options() -> None:
    shown = 0
    for page in PAGES:
        for words in commands(page, "millstream"):
            where = f"{page.relative_to(ROOT)}: millstream {' '.join(words)}"
            command: click.Command = cli
            options = options_of(cli)
            left = list(words)
            while left and hasattr(command, "get_command"):
                word = left.pop(0)
                if word.startswith("-"):
                    assert word.partition("=")[0] in options, where
                    if "=" not in word and left:
                        left.pop(0)
                    continue
                if word.isupper() or word in ("…", "[OPTIONS]"):
                    break
                found = command.get_command(click.Context(command), word)
                assert found is not None, where
                command = found
            options |= options_of(command)
            used = set(re.findall(r"(?<=[ \[])--?[a-z][-a-z]*", " " + " ".join(left)))
            assert used <= options | {"--help"}, where
            shown += 1
    assert shown > 60


def options_of(command: click.Command) -> set[str]:
    """Names of a command's options, including short ones."""
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts)}


@pytest.mark.process
def test_every_target_of_make_exists_and_takes_what_is_passed() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w./-]+):", makefile, re.MULTILINE))
    shown = 0
    for page in PAGES:
        for words in commands(page, "make"):
            where = f"{page.relative_to(ROOT)}: make {' '.join(words)}"
            for word in shlex.split(" ".join(words)):
                name, is_variable, value = word.partition("=")
                if word in ("--directory", "millstream", "…", "TARGET"):
                    continue
                if not is_variable:
                    assert word in targets, where
                    continue
                assert f"$({name})" in makefile, where
                if name in PROGRAMS:
                    for option in re.findall(r"--[a-z][-a-z]*", value):
                        assert f'"{option}"' in source(ROOT / PROGRAMS[name]), where
            shown += 1
    assert shown > 30


def source(path: Path) -> str:
    """A file, or all Python files of a folder."""
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return "\n".join(file.read_text() for file in files)


def test_every_kind_and_label_in_a_command_of_kubectl_exists() -> None:
    kinds = set(BUILT_IN)
    for file in (ROOT / "crds").glob("*.yaml"):
        names = yaml.safe_load(file.read_text())["spec"]["names"]
        kinds |= {names["plural"], names["singular"], *names.get("shortNames", ())}
    operator = source(ROOT / "operator/src") + (ROOT / "charts/millstream/templates/_helpers.tpl").read_text()
    shown = 0
    for page in PAGES:
        for words in commands(page, "kubectl"):
            where = f"{page.relative_to(ROOT)}: kubectl {' '.join(words)}"
            plain = [
                word
                for before, word in zip(["", *words], words, strict=False)
                if before not in WITH_VALUE and not word.startswith("-")
            ]
            if len(plain) > 1 and plain[0] in WITH_KIND:
                for name in plain[1].split(","):
                    kind = re.sub(r"[./].*", "", name)
                    assert kind in kinds or kind.isupper() or not kind.isalpha(), where
            for label in re.findall(r"(?<!\w\.)millstream\.dev/[a-z-]+", " ".join(words)):
                name = label.partition("/")[2]
                assert label in operator or f"/{name}" in operator or name in kinds, where
            for component in re.findall(r"component=([a-z]+)", " ".join(words)):
                assert f'"{component}"' in operator or f"component: {component}" in operator, where
            shown += 1
    assert shown > 50
