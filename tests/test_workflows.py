"""GitHub's files: valid YAML, the same .ci/run, pinned actions, hooks that run the pinned tools."""

from __future__ import annotations

import re
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
                assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+\.\d+\.\d+", step["uses"]), step


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
    repositories = parsed(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [one["repo"] for one in repositories] == ["local"]
    hooks = repositories[0]["hooks"]
    lint = (ROOT / "Makefile").read_text().partition("\nlint: setup\n")[2].partition("\n\n")[0]
    assert {hook["id"] for hook in hooks} == {"ruff-check", "ruff-format", "lint-imports"}
    for hook in hooks:
        assert hook["language"] == "system"
        program, *words = hook["entry"].split()
        assert program.startswith(".venv/bin/")
        assert " ".join([f"$(BIN)/{Path(program).name}", *words[:1]]).removesuffix(" --force-exclude") in lint


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
