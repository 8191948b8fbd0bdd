"""MirrorMaker: reconciled one by one; a change of its Deployment wakes it."""

from __future__ import annotations

from ..manager.controller import OwnedResource, one_by_one
from ..models import MirrorMaker
from ..reconcile.mirror.apply import reconcile_mirror

CONTROLLER = one_by_one(MirrorMaker, reconcile_mirror, owned=(OwnedResource("apps", "v1", "deployments"),))
