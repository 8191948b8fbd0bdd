"""docs/how-to/failover-kubernetes.md, as a reader runs it: two namespaces of one Kubernetes stand for two data centres.

Afterwards, west is mirrored into east again, as the page's last sentence says: equal records at equal offsets,
read-only until promotion. The tests of this module are one story and run in their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from millstream_harness.chart import CLIENT
from millstream_harness.kube import CommandFailed, Json, Namespace, kubeconfig, run, until
from millstream_harness.kubernetes_pages import FAILOVER, PROMOTION
from millstream_harness.pages import run_command

NAMES = {"namespace shop": "namespace e2e-$site"}
"""Both contexts of the test lead to the same Kubernetes, so each site has its own namespace."""
WEST, EAST = Namespace("e2e-west"), Namespace("e2e-east")
KIND, MIRROR, REVERSE = "mirrormaker.millstream.dev", "west-to-east", "east-to-west"
WORKERS = "app.kubernetes.io/component=mirror"
COUNT = 2_000


@pytest.fixture(scope="module")
def folder(
    millstream: Namespace, deleted: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A folder with a kubeconfig that has a context for each site, made as the page says; east's is current."""
    folder = tmp_path_factory.mktemp("failover")
    config = folder / "kubeconfig"
    kubeconfig(config, here="default")
    (here,) = json.loads(config.read_text())["contexts"]
    command = "kubectl config set-context west --cluster=CLUSTER --user=USER"
    names = {"CLUSTER": here["context"]["cluster"], "USER": here["context"]["user"]}
    for name in ("west", "east"):
        environment = {"KUBECONFIG": str(config)}
        run_command(FAILOVER.page, folder, command, replace={**names, "west": name}, env=environment)
    run("kubectl", "--kubeconfig", str(config), "config", "use-context", "east")
    for site in (WEST, EAST):
        run("kubectl", "delete", "namespace", site.name, "--ignore-not-found", timeout=180)
    yield folder
    for site in (WEST, EAST):
        run("kubectl", "delete", "namespace", site.name, "--ignore-not-found", "--wait=false")
        deleted.append(site.name)


def client(site: Namespace, *command: str, stdin: bytes = b"") -> str:
    """Run the command in the page's pod."""
    return site.client("millstream", *command, image=CLIENT, stdin=stdin)


def produce(site: Namespace, count: int) -> None:
    lines = b"".join(b"%d\torder %d\n" % (number % 97, number) for number in range(count))
    client(site, "produce", "orders", "--key-separator", "\\t", stdin=lines)


def consume(site: Namespace, count: int) -> list[tuple[int, int, str]]:
    """(partition, offset, value) of this many records from the beginning."""
    options = ("--from", "earliest", "--max", str(count))
    said = client(site, "--output", "json", "consume", "orders", *options)
    records = [json.loads(line) for line in said.splitlines()]
    return sorted((one["partition"], one["offset"], one["value"]) for one in records)


def positions(site: Namespace) -> list[tuple[int, int]]:
    described: Json = json.loads(client(site, "--output", "json", "group", "describe", "billing"))
    return sorted((one["partition"], one["committed"]) for one in described["partitions"])


def promoted(site: Namespace, mirror: str, request: str, records: int) -> None:
    """A planned promotion has finished: nothing is missing, and no worker is left."""
    last = site.wait_condition(KIND, mirror, "Promoted", reason="Promoted")["status"]["lastPromotion"]
    assert (last["requestId"], last["state"], last["notMirrored"]) == (request, "Done", 0)
    (topic,) = last["topics"]
    assert (topic["topic"], topic["sourceEndsFrom"]) == ("orders", "Source")
    assert sum(topic["ends"]) == sum(topic["sourceEnds"]) == records
    site.wait_condition(KIND, mirror, reason="Promoted", timeout=120)
    until("the workers have ended", lambda: not site.list("pod", "-l", WORKERS))


def test_the_page_runs_as_it_says(folder: Path) -> None:
    FAILOVER.run(folder, replace=NAMES, env={"KUBECONFIG": str(folder / "kubeconfig")})
    promoted(WEST, REVERSE, "back-in-west", 4)


def test_west_is_mirrored_again_and_nothing_is_set_aside(folder: Path) -> None:
    WEST.kubectl("delete", KIND, REVERSE)
    mirror: Json = yaml.safe_load((folder / "west-to-east.yaml").read_text())
    mirror["spec"]["rejoin"] = {"requestId": "again"}
    EAST.apply(mirror)
    EAST.wait_condition(KIND, MIRROR, "CaughtUp")
    (source,) = EAST.wait_condition(KIND, MIRROR, reason="Mirroring")["status"]["sources"]
    assert not source.get("setAside")
    with pytest.raises(CommandFailed, match="is a read-only mirror of"):
        produce(EAST, 1)
    produce(WEST, COUNT)
    until("all records in east", lambda: consume(EAST, COUNT + 4) == consume(WEST, COUNT + 4), every=3)


def test_a_killed_worker_is_replaced_and_a_promotion_ends_the_mirror(folder: Path) -> None:
    """The promotion is the one of docs/identity-mirrors.md."""
    total = 2 * COUNT + 4
    (worker,) = EAST.list("pod", "-l", WORKERS)
    EAST.kubectl("delete", "pod", worker["metadata"]["name"], "--grace-period=0", "--force")
    produce(WEST, COUNT)
    client(WEST, "consume", "orders", "--group", "billing", "--max", "1000")
    until("mirrored by the next worker", lambda: consume(EAST, total) == consume(WEST, total), every=3)
    wanted = positions(WEST)
    until("the group's positions", lambda: positions(EAST) == wanted)
    PROMOTION.run(folder)
    promoted(EAST, MIRROR, "west-is-down", total)
    produce(EAST, 10)
    assert set(consume(WEST, total)) < set(consume(EAST, total + 10))
