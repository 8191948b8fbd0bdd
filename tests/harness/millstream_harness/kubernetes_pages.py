"""Parts of pages that e2e runs on a Kubernetes, each as a reader would.

tests/test_page_commands.py holds every block with kubectl or helm to this list, and this list to the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .java import ROOT
from .pages import Block, run_page


@dataclass(frozen=True, slots=True)
class Part:
    """A page; or only what is below these headings, without the blocks of these titles and headings."""

    name: str
    sections: frozenset[str] = frozenset()
    leave_out: frozenset[str] = frozenset()

    @property
    def page(self) -> Path:
        return ROOT / self.name

    def has(self, block: Block) -> bool:
        """Whether this part runs the block."""
        return block.is_in(self.sections, self.leave_out)

    def run(
        self, folder: Path, *, replace: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        """Run the blocks, of which there is at least one, by `run_page`."""
        ran = run_page(
            self.page, folder, replace=replace, sections=self.sections, leave_out=self.leave_out, env=env
        )
        assert ran > 0


def part(name: str, *, sections: set[str] | None = None, leave_out: set[str] | None = None) -> Part:
    return Part(name, frozenset(sections or ()), frozenset(leave_out or ()))


_SPEC_CHANGED, _UPGRADED = "After a change of a resource", "After an upgrade of the operator"
_AT_ONCE, _OPERATIONS = "Upgrade one Cluster at once", "docs/operations.md"
_CLUSTER = "examples/cluster/README.md"
_BACKUP, _ONE_PART = "docs/how-to/backup-kubernetes.md", "One part alone"
_TREE, _DISKS = "ZooKeeper", "All brokers' disks"
_TABLES, _STATUSES = "The tables of loads", "Statuses"

_SECURE = "docs/how-to/secure.md"

TUTORIAL = part("docs/tutorials/kubernetes.md", leave_out={"build", "kind", "registry"})
BACKUP = part(_BACKUP, leave_out={_ONE_PART})
DISK_RESTORED = part(_BACKUP, sections={_ONE_PART}, leave_out={_TREE, _DISKS, _TABLES, _STATUSES})
TREE_RESTORED = part(_BACKUP, sections={_TREE})
DISKS_RESTORED = part(_BACKUP, sections={_DISKS})
TABLE_RESTORED = part(_BACKUP, sections={_TABLES})
STATUS_RESTORED = part(_BACKUP, sections={_STATUSES})
FAILOVER = part("docs/how-to/failover-kubernetes.md")
GITOPS = part("docs/how-to/gitops.md", leave_out={"On a laptop"})
MIGRATION = part("docs/how-to/migrate.md", sections={"On Kubernetes"})
PROMOTION = part("docs/identity-mirrors.md", sections={"Promotion"}, leave_out={"Without an operator"})
LEASES = part(_OPERATIONS, sections={"Which operator acts", "Which release acts in a namespace"})
UPGRADE = part(_OPERATIONS, sections={"Upgrading"}, leave_out={_AT_ONCE, _SPEC_CHANGED})
RESTART = part(_OPERATIONS, sections={_AT_ONCE})
END_OF_CHANGE = part(_OPERATIONS, sections={"Wait for the end of a change"}, leave_out={_UPGRADED})
UNINSTALLED = part(_OPERATIONS, sections={"Uninstalling"})
THREE_BROKERS = part(_CLUSTER, leave_out={"Clean up"})
CLEAN_UP = part(_CLUSTER, sections={"Clean up"}, leave_out={"Volumes"})
VOLUMES = part(_CLUSTER, sections={"Volumes"})
WORKLOAD = part("examples/workload/README.md", sections={"On Kubernetes"})
OPEN_CLUSTER = part(_SECURE, sections={"The open Cluster"})
USERS = part(_SECURE, sections={"A User for each application"})
SECOND_LISTENER = part(_SECURE, sections={"A second listener"})
CLOSED = part(_SECURE, sections={"Close the Internal listener"})
RETURNED = part(_SECURE, sections={"Return to the Internal listener"})
SECRET = part("docs/loads.md", sections={"Tables"})

PARTS = {name: value for name, value in globals().items() if isinstance(value, Part)}
