"""Decides which MirrorMaker a group belongs to, when two of one name write to one target.

The group's name has the names of the mirror and of the source only, so that a MirrorMaker that is applied again
continues there. Two MirrorMakers of one name, in two namespaces or in two Kubernetes clusters, therefore meet in one
group. Its members put the identity of their MirrorMaker into their JoinGroup metadata. The oldest one owns the group:
only its workers lead it and get tasks. The others stay members, report the conflict, and take over if the owner goes.

A worker learns its MirrorMaker from its environment (``MILLSTREAM_MIRROR_UID``, ``MILLSTREAM_MIRROR_CREATED``), not
from mirror.json: workers of an older release may read that file during an upgrade, and refuse unknown fields. They, and
workers that run without a MirrorMaker, have no identity and count as the owner's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

MAX_TEXT = 255
UID, CREATED = "MILLSTREAM_MIRROR_UID", "MILLSTREAM_MIRROR_CREATED"


class Owner(Struct, frozen=True, order=True, array_like=True, forbid_unknown_fields=True):
    """A MirrorMaker; the order is by age. Raises ValueError for fields that no MirrorMaker has."""

    created: str
    """Time of creation, as Kubernetes writes it: 2026-11-27T09:00:00Z."""
    uid: str
    namespace: str

    def __post_init__(self) -> None:
        for text in (self.created, self.uid, self.namespace):
            if len(text) > MAX_TEXT or not (text.isascii() and text.isprintable()):
                raise ValueError("not the identity of a MirrorMaker")
        if not self.uid:
            raise ValueError("a MirrorMaker without a uid")


def owner_in_environment(environment: Mapping[str, str], namespace: str) -> Owner | None:
    """This worker's MirrorMaker; None without a uid. Raises ValueError."""
    uid = environment.get(UID, "")
    return Owner(environment.get(CREATED, ""), uid, namespace) if uid else None


def oldest(owners: Iterable[Owner | None]) -> Owner | None:
    """The owner of a group with members of these MirrorMakers; None if none of them has an identity."""
    return min((owner for owner in owners if owner is not None), default=None)


def conflict(group_id: str, owner: Owner) -> str:
    """The message for the workers of another MirrorMaker."""
    return (
        f"group {group_id} in the target belongs to an older MirrorMaker of this name, in namespace"
        f" {owner.namespace!r} (uid {owner.uid}): this one mirrors nothing from the source: give one of the two another"
        " name, or delete the older one"
    )
