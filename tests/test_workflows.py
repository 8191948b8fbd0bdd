"""GitHub's files: valid YAML, the same .ci/run, pinned actions, hooks that run the pinned tools."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))


def parsed(path: Path) -> dict[Any, Any]:
    document = yaml.safe_load(path.read_text())
    assert isinstance(document, dict), path
    return document


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_least_rights_a_time_limit_and_pinned_actions(path: Path) -> None:
    workflow = parsed(path)
    assert workflow["name"]
    assert workflow[True], "on:"  # YAML 1.1 reads `on` as a boolean
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert "uses" in job or job["timeout-minutes"] <= 120
        for step in job.get("steps", []):
            assert ("uses" in step) != ("run" in step), step
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+(/[\w-]+)?@[0-9a-f]{40}", step["uses"]), step


def test_action_has_one_commit_whose_version_stands_beside_it() -> None:
    """A tag can be moved to other code, a commit cannot. Renovate reads and writes the version behind it."""
    commits: dict[str, set[tuple[str, str]]] = {}
    for path in WORKFLOWS:
        for line in re.findall(r"uses: ([^.\s].*)", path.read_text()):
            action = re.fullmatch(r"([\w-]+/[\w-]+)\S*@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", line)
            assert action, f"{path.name}: {line}"
            commits.setdefault(action[1], set()).add((action[2], action[3]))
    assert len(commits) > 10
    assert [action for action, found in commits.items() if len(found) > 1] == []


def test_ci_runs_what_everyone_runs() -> None:
    job = parsed(GITHUB / "workflows/ci.yml")["jobs"]["run"]
    assert job["steps"][-1]["run"] == ".ci/run ${{ matrix.part }}"
    script = (ROOT / ".ci/run").read_text()
    (everything,) = re.findall(r"^parts=\$\{\*:-(.*)\}$", script, re.MULTILINE)
    parts = [part for one in job["strategy"]["matrix"]["include"] for part in one["part"].split()]
    assert set(parts) == set(everything.split()) == set(re.findall(r"\bwanted (\w+)", script))
    shards = [one["shard"] for one in job["strategy"]["matrix"]["include"] if "shard" in one]
    assert shards == [f"{number}/{len(shards)}" for number in range(1, len(shards) + 1)]
    assert parts.count("tests") == len(shards)
    assert job["steps"][0]["with"] == {"fetch-depth": 0}, "the number of commits chooses the soak tests"
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_every_test_runs_each_night_and_for_a_release() -> None:
    for name in ("nightly", "release"):
        assert parsed(GITHUB / f"workflows/{name}.yml")["jobs"]["test"] == {
            "uses": "./.github/workflows/ci.yml",
            "with": {"all": True},
        }
    (step,) = parsed(GITHUB / "workflows/ci.yml")["jobs"]["run"]["steps"][-1:]
    assert step["env"]["SOAK"] == "${{ inputs.all && '1/1' || '' }}"
    assert step["env"]["E2E"] == "${{ inputs.all && 'all' || 'core' }}"


def test_a_release_is_tested_and_has_every_image() -> None:
    jobs = parsed(GITHUB / "workflows/release.yml")["jobs"]
    assert (jobs["images"]["needs"], jobs["publish"]["needs"]) == ("test", "images")
    released = {(one["name"], one["context"]) for one in jobs["images"]["strategy"]["matrix"]["include"]}
    makefile = (ROOT / "Makefile").read_text()
    assert released == set(re.findall(r"IMAGE_BUILD\) millstream/(\w+):\S+ (\S+)$", makefile, re.MULTILINE))
    (build,) = (step["run"] for step in jobs["images"]["steps"] if step.get("name") == "Build and push")
    for option in ("--platform linux/amd64,linux/arm64", "--sbom=true", "--push"):
        assert option in build
    commands = "\n".join(step.get("run", "") for job in jobs.values() for step in job.get("steps", []))
    for target in re.findall(r"\bmake ((?:--\S+ )*)(\w+)", commands):
        assert re.search(rf"^{target[1]}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize(
    "path", sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
)
def test_an_issue_form_is_complete(path: Path) -> None:
    form = parsed(path)
    if path.stem == "config":
        assert form == {"blank_issues_enabled": True}
        return
    assert form["name"]
    assert form["description"]
    identifiers = [field["id"] for field in form["body"]]
    assert len(set(identifiers)) == len(identifiers)
    for field in form["body"]:
        assert field["type"] in ("input", "textarea", "dropdown", "checkboxes")
        assert field["attributes"]["label"]


def test_hooks_run_the_pinned_tools() -> None:
    config = parsed(ROOT / ".pre-commit-config.yaml")
    assert [one["repo"] for one in config["repos"]] == ["local"]
    hooks = {hook.pop("id"): hook for hook in config["repos"][0]["hooks"]}
    makefile = (ROOT / "Makefile").read_text()
    assert set(hooks) == {
        *("ruff-check", "ruff-format", "lint-imports", "mypy", "codespell", "actionlint", "commit-message")
    }
    assert {hook["language"] for hook in hooks.values()} == {"system"}
    lint = makefile.partition("\nlint: setup types\n")[2].partition("\n\n")[0]
    for hook in hooks.values():
        program, *words = hook["entry"].split()
        if program == "make":
            assert words[0] == "--silent"
            assert re.search(rf"^{words[1]}: ", makefile, re.MULTILINE)
        elif program.startswith(".venv/bin/"):
            command = " ".join([f"$(BIN)/{Path(program).name}", *words[:1]])
            assert command.removesuffix(" --force-exclude") in lint
        else:
            assert (ROOT / program).stat().st_mode & 0o111
    assert hooks["commit-message"]["stages"] == ["commit-msg"]
    assert set(config["default_install_hook_types"]) == {"pre-commit", "commit-msg"}


def test_ci_checks_what_hooks_check() -> None:
    (command,) = re.findall(r"^  (make lint.*)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert command == "make lint spelling workflows"


@pytest.fixture(scope="module")
def mistakes() -> Callable[[str], list[str]]:
    spec = importlib.util.spec_from_file_location("commit_message", ROOT / ".ci/commit_message.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    checked: Callable[[str], list[str]] = module.mistakes
    return checked


@pytest.mark.parametrize(
    "message",
    [
        "log: check rolled segments\n",
        "spark-operator-jobs: read the table's own time zone\n\nSpark's session has another.\n",
        "docs/how-to, README: shorter\n# Please enter the commit message for your changes.\n",
        "Makefile: " + "x" * 61,
        "fixup! log: check rolled segments",
        "Merge branch 'main' into log",
    ],
)
def test_commit_message_with_area_and_short_subject_passes(
    message: str, mistakes: Callable[[str], list[str]]
) -> None:
    assert mistakes(message) == []


@pytest.mark.parametrize(
    ("message", "mistake"),
    [
        ("", "names no area"),
        ("check rolled segments", "names no area"),
        ("log:check rolled segments", "names no area"),
        ("Makefile: " + "x" * 62, "72 characters of at most 71"),
        ("log: check rolled segments.", "full stop"),
        ("log: check rolled segments\nas Kafka does", "second line"),
    ],
)
def test_commit_message_is_refused_with_what_to_do(
    message: str, mistake: str, mistakes: Callable[[str], list[str]]
) -> None:
    (found,) = mistakes(message)
    assert mistake in found


def test_each_image_is_scanned() -> None:
    release, security = (parsed(GITHUB / f"workflows/{name}.yml")["jobs"] for name in ("release", "security"))
    assert security["image"]["strategy"]["matrix"] == release["images"]["strategy"]["matrix"]
    (scan,) = (step for step in security["image"]["steps"] if "scan-action" in step.get("uses", ""))
    assert "fail-build" not in scan["with"]


def test_wheels_are_published_without_a_secret() -> None:
    """By a job that runs nothing of the checkout: what builds a wheel cannot publish another."""
    jobs = parsed(GITHUB / "workflows/release.yml")["jobs"]
    assert jobs["wheels"]["permissions"] == {"id-token": "write"}
    assert all("uses" in step for step in jobs["wheels"]["steps"])
    assert "secrets." not in json.dumps(jobs["wheels"])
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == [
        "images",
        "wheels",
    ]


def test_owners_and_renovate_name_what_is_there() -> None:
    owned = re.findall(r"^(/\S*)", (GITHUB / "CODEOWNERS").read_text(), re.MULTILINE)
    folders = {f"/{path.parent.name}/" for path in ROOT.glob("*/pyproject.toml")}
    assert folders <= set(owned)
    for path in owned:
        assert (ROOT / path.strip("/")).exists(), path
    renovate = json.loads((GITHUB / "renovate.json").read_text())
    assert set(renovate["enabledManagers"]) == {"github-actions", "dockerfile", "maven"}


def test_each_week_every_part_is_tried_with_its_newest_release() -> None:
    jobs = parsed(GITHUB / "workflows/weekly.yml")["jobs"]
    parts = jobs["newest"]["strategy"]["matrix"]["part"]
    script = (ROOT / ".ci/newest").read_text()
    assert parts == re.findall(r"^(\w+)\)$", script, re.MULTILINE)
    assert jobs["newest"]["steps"][-1]["run"] == ".ci/newest ${{ matrix.part }}"
    assert "permissions" not in jobs["newest"], "new releases run without rights"
    assert (ROOT / ".ci/newest").stat().st_mode & 0o111
    tools = parsed(GITHUB / "workflows/ci.yml")["jobs"]["run"]["steps"][:-1]
    assert [step.get("uses") or step["run"] for step in jobs["newest"]["steps"][:-1]] == [
        step.get("uses") or step["run"] for step in tools
    ]


def test_issue_needs_no_more_than_its_rights() -> None:
    report = parsed(GITHUB / "workflows/weekly.yml")["jobs"]["report"]
    assert report["permissions"] == {"actions": "read", "issues": "write"}
    assert all("uses" not in step for step in report["steps"]), "no code of the checkout, nor of an action"
