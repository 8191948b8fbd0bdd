"""BatchLoad: reconciled one by one; a change of its Job wakes it."""

from __future__ import annotations

from ..manager.controller import OwnedResource, one_by_one
from ..models import BatchLoad
from ..reconcile.load.apply import reconcile_load

CONTROLLER = one_by_one(BatchLoad, reconcile_load, owned=(OwnedResource("batch", "v1", "jobs"),))
