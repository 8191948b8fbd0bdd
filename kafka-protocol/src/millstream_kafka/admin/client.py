"""`AdminClient`: the administration of one cluster."""

from __future__ import annotations

from .cluster import ClusterAdmin
from .groups import GroupAdmin
from .offsets import OffsetAdmin
from .security import SecurityAdmin


class AdminClient(ClusterAdmin, GroupAdmin, OffsetAdmin, SecurityAdmin):
    """Raises BrokerError if a broker does not answer, and ApiError if a whole request is refused."""
