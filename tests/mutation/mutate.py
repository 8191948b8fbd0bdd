"""Mutation testing: change one operator, constant or condition at a time, and see whether the tests notice.

    python tests/mutation/mutate.py [--only AREA | --only AREA/MODULE] ... [--sample N [--seed S]] [--jobs N]

Each area below is a package with its own tests. Mutmut writes all mutants of a module into one file and
forks a process for each, which runs the tests that reach the mutated function until one fails. It runs in a copy under
``.cache/mutation/AREA`` and keeps its results there: the next run tries mutants that went unnoticed, and functions that
have changed.

A mutant that no test can notice is *equivalent*: ``equivalent/AREA/MODULE.toml`` lists each with its reason, and it
counts neither way. The exit status is 1 if a module stays below the goal, or the sample of an area;
``.cache/mutation/unnoticed.txt`` has the mutants that the tests missed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".cache" / "mutation"
WORKER = Path(__file__).with_name("worker.py")
EQUIVALENT = Path(__file__).with_name("equivalent")
GOAL = 0.95
"""Share of the mutants of a module, or of an area's sample, that are not equivalent."""
CHOSEN = "not kafka and not a_few_hundred_calls and not at_any_line"
"""Left out are tests beside Apache Kafka, and two that count calls and lines: code with mutants has others."""
SOURCES = ("broker-image", "kafka-protocol", "operator", "client", "spark-operator-jobs")
NEEDED = ("tests", "crds", "charts", "examples", "docs", "bench", "e2e", *SOURCES)
"""Files that tests read, besides the sources."""


@dataclass(frozen=True)
class Area:
    """Modules (a pattern below ``src``) and their own tests (a folder below the root, names in it or below it)."""

    modules: str
    folder: str
    tests: tuple[str, ...]

    @property
    def package(self) -> str:
        return self.modules.partition("/*")[0]

    def paths(self) -> list[str]:
        return [str(Path(self.folder, name).with_name(f"test_{Path(name).name}.py")) for name in self.tests]


def tests_below(folder: str, root: str) -> list[str]:
    """The names of all tests in a folder and its own folders."""
    return [
        str(path.with_name(path.stem.removeprefix("test_")).relative_to(ROOT / root))
        for path in sorted((ROOT / folder).rglob("test_*.py"))
    ]


AREAS = {
    "groups": Area(
        "millstream_broker/groups/*.py",
        "tests/broker/groups",
        (
            "group_driver",
            "group_driver_clock",
            "group_expiry",
            "group_late",
            "group_membership",
            "group_offsets",
            "group_positions",
            "group_records",
            "group_static_members",
            "group_subscriptions",
            "group_stateful",
            "group_transactional_offsets",
        ),
    ),
    "transactions": Area(
        "millstream_broker/transactions/*.py",
        "tests/broker/transactions",
        (
            "marker_writes",
            "transaction_coordinator",
            "transaction_id_pattern",
            "transaction_markers",
            "transaction_records",
            "transaction_stateful",
            "transaction_verifier",
            "transactions_served",
            "transaction_writes",
        ),
    ),
    "coordinator": Area(
        "millstream_broker/coordinator/*.py",
        "tests/broker",
        (
            "coordinator/coordinator_runtime",
            "coordinator/coordinator_timers",
            "coordinator/coordinator_writer",
            "groups/group_driver",
            "groups/group_driver_clock",
            "groups/group_late",
            "groups/group_records",
            "replication/offsets_topic_late",
        ),
    ),
    "controller": Area(
        "millstream_broker/controller/*.py",
        "tests/broker/controller",
        # The simulation is slow, and these notice its effects.
        (
            "controller_administration",
            "controller_announcements",
            "controller_assignments",
            "controller_brokers",
            "controller_channels",
            "controller_comparison",
            "controller_deposed",
            "controller_driver",
            "controller_elections",
            "controller_factor",
            "controller_machine",
            "controller_partitions",
            "controller_placement",
            "controller_reassignment",
            "controller_requests",
            "controller_restored_tree",
            "controller_suspects",
            "controller_topics",
            "leader_epochs",
        ),
    ),
    "replication": Area(
        "millstream_broker/replication/*.py",
        "tests/broker",
        (
            "replication/isr",
            "replication/isr_writes",
            "replication/delayed_produce",
            "replication/mirror_append",
            "replication/mirror_truncate",
            "replication/mirrored_transactions",
            "replication/append_model",
            "replication/throttle",
            "replication/transactional_appends",
            "replication/transactional_reads",
            "replication/replication_machine",
            "replication/follower",
            "replication/fetcher",
            "replication/fetch_sessions",
            "replication/rack_sessions",
            "replication/consumer_sessions",
            "replication/follower_reads",
            "replication/selector",
            "replication/partition",
            "replication/led_partition",
            "replication/append_order",
            "replication/append_origin",
            "replication/delayed_fetch",
            "replication/large_fetches",
            "replication/replica_manager",
            "replication/replicas_opened",
            "replication/cold_reads",
            "replication/fetcher_connections",
            "replication/fetcher_cuts",
            "replication/follow_interrupted",
            "replication/log_starts",
            "replication/offsets_topic_late",
            "replication/deleted_topics",
            "replication/fetched_partition",
            "replication/lost_logs",
            "replication/stops",
            "network/fetch_shortcut",
            "network/throttling",
            "security/acl/revoked_rights",
        ),
    ),
    "kafka": Area(
        "millstream_kafka/*.py",
        "tests/broker/log",
        (
            "log_batch",
            "log_compression",
            "log_decompressed_limit",
            "log_hostile",
            "log_admission_rules",
            "log_compaction_pass",
        ),
    ),
    "log": Area(
        "millstream_broker/log/*.py",
        "tests/broker",
        (
            "log/log_epochs",
            "log/sequence_guard",
            "log/log_admission_rules",
            "log/log_index",
            "log/log_ordinary_append",
            "log/log_producer_snapshots",
            "log/log_producers",
            "log/log_recovery",
            "log/log_recovery_files",
            "log/log_retention",
            "log/log_compaction",
            "log/log_compaction_due",
            "log/log_compaction_pass",
            "log/log_compaction_horizon",
            "log/log_compaction_meanwhile",
            "log/log_compaction_transactions",
            "log/log_decompressed_limit",
            "log/log_hostile",
            "log/log_checkpoints",
            "log/log_checkpoint_files",
            "log/log_deleted",
            "log/log_directory",
            "log/log_folders",
            "log/log_snapshot",
            "log/log_manager",
            "log/log_truncation",
            "log/log_manager_dirs",
            "log/log_manager_logs",
            "log/log_model",
            "log/log_files",
            "log/log_segment",
            "log/log_segments",
            "log/log_timestamps",
            "log/log_transactions",
            "log/log_transactions_model",
            "log/log_durability",
            "log/log_upkeep",
            "log/look_ups",
            "log/log_headers",
            "log/log_inventory",
            "log/log_known_states",
            "log/log_starts",
            "log/log_summaries",
            "log/log_mirrored",
            "log/log_rules",
            "log/strays",
            "log/transaction_index",
            "cluster/foreign_trees",
            "removed_strays",
            "replication/cold_reads",
            "replication/mirror_append",
            "replication/mirror_truncate",
            "replication/replica_manager",
        ),
    ),
    "security": Area(
        "millstream_broker/security/*.py",  # and those of its folders
        "tests/broker",
        (
            *tests_below("tests/broker/security", "tests/broker"),
            "config/authorizer_keys",
            "config/listener_keys",
            "network/login",
            "network/throttling",
            "network/throttled_connections",
            "network/tls_connections",
            "cluster_tls",
            "cluster_with_sasl",
        ),
    ),
    "operator": Area(
        "millstream_operator/reconcile/*/*.py",
        "tests/operator",
        (
            "resources/cluster_builders",
            "reconcile/cluster/cluster_looks",
            "reconcile/cluster/cluster_restarts",
            "reconcile/cluster/cluster_scaling",
            "reconcile/cluster/cluster_objects",
            "reconcile/cluster/cluster_strays",
            "reconcile/cluster/ensemble",
            "reconcile/group/group_looks",
            "reconcile/group/group_plan",
            "reconcile/group/group_reset_plan",
            "reconcile/group/group_scaling",
            "reconcile/group/group_stuck",
            "reconcile/group/group_workload",
            "resources/load_builders",
            "reconcile/load/load_looks",
            "reconcile/load/load_offsets",
            "reconcile/load/load_plan",
            "reconcile/load/load_ranges",
            "reconcile/load/load_runner",
            "reconcile/load/load_runs",
            "reconcile/mirror/mirror_looks",
            "reconcile/mirror/mirror_plan",
            "reconcile/mirror/mirror_silence",
            "reconcile/common/objects",
            "reconcile/common/placement",
            "reconcile/common/pods",
            "reconcile/common/reference",
            "reconcile/common/refused_pods",
            "reconcile/topic/replication_plan",
            "reconcile/common/report",
            "reconcile/cluster/rolling_plan",
            "reconcile/cluster/scaling_plan",
            "reconcile/topic/topic_looks",
            "reconcile/topic/topic_plan",
            "reconcile/cluster/upgrades",
            "reconcile/common/volumes",
        ),
    ),
}


def prepare(name: str) -> Path:
    """The area's folder: links to the sources, and a configuration for Mutmut."""
    area, folder = AREAS[name], WORK / name
    (folder / "src").mkdir(parents=True, exist_ok=True)
    for source in SOURCES:
        for package in (ROOT / source / "src").iterdir():
            link(folder / "src" / package.name, package)
    for each in NEEDED:
        link(folder / each, ROOT / each)
    config = {
        "source_paths": sorted(f"src/{path.name}" for path in (folder / "src").iterdir()),
        "only_mutate": [f"src/{area.modules}"],
        "also_copy": list(NEEDED[1:]),
        "pytest_add_cli_args": ["--hypothesis-profile=mutation", "-p", "no:cacheprovider", "-k", CHOSEN],
        "pytest_add_cli_args_test_selection": area.paths(),
        "use_git_change_detection": False,
        "track_dependencies": False,
        "timeout_constant": 30.0,  # seconds: enough for a quick test even on a busy machine
        "timeout_multiplier": 2.0,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in config.items()]
    text = (ROOT / "pyproject.toml").read_text("utf-8") + "\n[tool.mutmut]\n" + "\n".join(lines) + "\n"
    if not (path := folder / "pyproject.toml").exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")
    shutil.rmtree(folder / "mutants" / "tests", ignore_errors=True)
    (folder / "mutants" / "mutmut-stats.json").unlink(
        missing_ok=True
    )  # which tests reach which functions: tests change, too
    return folder


def link(path: Path, target: Path) -> None:
    if not path.is_symlink():
        path.symlink_to(target)


def equivalents(area: str) -> dict[tuple[str, str, str, str], str]:
    """Why each listed mutant of an area is equivalent, by module, function, old and new lines."""
    package = AREAS[area].package
    return {
        (
            f"{package}/{path.relative_to(EQUIVALENT / area).with_suffix('.py')}",
            one["function"],
            one["old"],
            one["new"],
        ): one["why"]
        for path in (EQUIVALENT / area).rglob("*.toml")
        for one in tomllib.loads(path.read_text("utf-8"))["mutant"]
    }


def key_of(result: dict[str, Any]) -> tuple[str, str, str, str]:
    return result["module"], result["function"], result.get("old", ""), result.get("new", "")


def report(results: list[dict[str, Any]], by_package: bool = False) -> tuple[list[str], list[str], bool]:
    """A table by module or package, the missed mutants, and whether each row reaches the goal."""
    known = {key for area in AREAS for key in equivalents(area)}
    table = [
        f"| {'package' if by_package else 'module'} | mutants | noticed | by the time limit | equivalent | share |",
        "|---|---|---|---|---|---|",
    ]
    missed, reached = [], True
    rows: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        module = result["module"]
        rows.setdefault("/".join(module.split("/")[:2]) + "/" if by_package else module, []).append(result)
    for row, mutants in sorted(rows.items()):
        unnoticed = [one for one in mutants if one["status"] in ("survived", "no tests")]
        equivalent = [one for one in unnoticed if key_of(one) in known]
        count = len(mutants) - len(equivalent)
        noticed = len(mutants) - len(unnoticed)
        slow = sum(one["status"] == "timeout" for one in mutants)
        share = noticed / count if count else 1.0
        reached &= share >= GOAL
        table.append(f"| {row} | {len(mutants)} | {noticed} | {slow} | {len(equivalent)} | {share:.0%} |")
        missed += [
            f"{one['module']} {one['function']}\n  - {one['old']}\n  + {one['new']}\n"
            for one in unnoticed
            if one not in equivalent
        ]
    return table, missed, reached


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Change the code one operator at a time: do the tests notice?"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="AREA[/MODULE]",
        help=f"areas: {', '.join(AREAS)}; a module without .py; repeat for more (default: everything)",
    )
    parser.add_argument(
        "--sample",
        type=int,
        default=0,
        metavar="N",
        help="try only N changes of each area, chosen at random (default: all)",
    )
    parser.add_argument("--seed", type=int, default=1, help="another seed chooses other changes (default: 1)")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tried at the same time (default: 2)")
    options = parser.parse_args()
    wanted: dict[str, list[str]] = {}
    for each in options.only or list(AREAS):
        area, _, module = each.partition("/")
        if area not in AREAS:
            parser.error(f"--only {each}: there is no area {area}; choose from {', '.join(AREAS)}")
        wanted.setdefault(area, []).extend([module] if module else [])
    results: list[dict[str, Any]] = []
    for area, modules in wanted.items():
        print(f"mutation: {area}", flush=True)
        folder, package = prepare(area), AREAS[area].package.replace("/", ".")
        chosen = [f"{package}.{module.replace('/', '.')}.*" for module in modules]
        subprocess.run(
            [sys.executable, str(WORKER), *map(str, (options.jobs, options.sample, options.seed)), *chosen],
            cwd=folder,
            check=True,
        )
        results += json.loads((folder / "results.json").read_text("utf-8"))
    table, missed, reached = report(results, by_package=bool(options.sample))
    (WORK / "unnoticed.txt").write_text("\n".join(missed), "utf-8")
    print("\n".join(["", *table, ""]))
    print(f"{len(missed)} mutants went unnoticed: {WORK / 'unnoticed.txt'}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
