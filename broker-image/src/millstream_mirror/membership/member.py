"""Membership in a consumer group of the target, by which workers share a source's partitions.

JoinGroup, SyncGroup, Heartbeat and LeaveGroup with the protocol type "mirror": the coordinator does not interpret
assignments. The leader assigns the tasks round-robin; every rebalance first revokes all tasks (eager).

If a member's process ends, the others remove it (peer_liveness.py), so its tasks need not wait for its session to
expire. The leader sends the addresses of all members with the assignment.

Members may belong to two MirrorMakers of one name; only the owner's workers get tasks and lead (ownership.py).

``GroupMembership.run`` calls ``assigned`` with this worker's tasks, and ``revoked`` before it joins again: with
``lost`` True if the group may have given the tasks to others already, so the worker must not commit any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from millstream_kafka.client import BrokerError, ClusterClient
from millstream_kafka.protocol import describe_groups, heartbeat, join_group, leave_group, sync_group
from millstream_kafka.protocol.describe_groups import DescribeGroupsRequest
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.heartbeat import HeartbeatRequest
from millstream_kafka.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream_kafka.protocol.leave_group import LeaveGroupRequest, MemberIdentity
from millstream_kafka.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

from ..kafka.group_offsets import is_moved
from ..kafka.topics import MirroredTopic
from .ownership import Owner, conflict, oldest
from .peer_liveness import Peer, PeerWatch, WorkerEndpoint, next_after, owner_in, peers_of

SESSION_TIMEOUT_MS = 6_000
"""The minimum that brokers allow, so that others soon take over from a lost worker."""
REBALANCE_TIMEOUT_MS = 15_000
HEARTBEAT_S = 1.0
PAUSE_S = 0.5
STABLE = "Stable"
OFFER_S = 3.0
"""How long a new leader waits for the topics, if it could not find them before it joined."""
LEAVE_TIMEOUT_S = 1.0

logger = logging.getLogger(__name__)


TopicName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{1,249}\Z")]


class TaskName(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A partition of the source, by its topic's id. Raises ValueError for an id that is none."""

    topic: TopicName
    target_topic: TopicName
    topic_id: str
    partition: Annotated[int, Meta(ge=0, lt=1 << 31)]

    def __post_init__(self) -> None:
        if self.topic_id:
            uuid.UUID(self.topic_id)


def deal(topics: Sequence[MirroredTopic], members: Sequence[str]) -> dict[str, list[TaskName]]:
    """Assign every partition to one member, in turn; deterministic for the same topics and members."""
    tasks = [
        TaskName(topic.topic, topic.target_topic, topic.topic_id, partition)
        for topic in sorted(topics, key=lambda topic: topic.topic)
        for partition in range(topic.partitions)
    ]
    in_turn = sorted(members)
    return {member: tasks[index :: len(in_turn)] for index, member in enumerate(in_turn)}


@dataclass(frozen=True, slots=True)
class Assignment:
    """A member's tasks, and the addresses of all members; leaders of older releases send no addresses."""

    tasks: list[TaskName]
    peers: list[Peer]
    owner: Owner | None = None
    """The group's owner, to the members of another MirrorMaker, which get no tasks."""


class _Encoded(Struct, omit_defaults=True):
    """An assignment as JSON; its fields have the names that workers of older releases read."""

    lanes: list[TaskName]
    peers: Raw = Raw(b"[]")
    owner: Owner | UnsetType = UNSET


def encode(assignment: Assignment) -> bytes:
    owner = assignment.owner if assignment.owner is not None else UNSET
    return msgspec.json.encode(_Encoded(assignment.tasks, Raw(msgspec.json.encode(assignment.peers)), owner))


def decode(assignment: bytes) -> Assignment:
    """Raises ValueError for data that no worker sends: any client may join the group, and lead it."""
    try:
        found = msgspec.json.decode(assignment, type=_Encoded) if assignment else _Encoded([])
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise ValueError(f"not an assignment of tasks: {str(error)[:200]!r}") from None
    return Assignment(found.lanes, _peers(found.peers), found.owner if found.owner is not UNSET else None)


def _peers(encoded: Raw) -> list[Peer]:
    """Without those that no worker has: a leader of another release may send more."""
    peers = []
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        for row in msgspec.json.decode(encoded, type=list[Raw]):
            with contextlib.suppress(msgspec.DecodeError, ValueError, RecursionError):
                peers.append(msgspec.json.decode(row, type=Peer))
    return peers


class GroupMembership:
    def __init__(
        self,
        target: ClusterClient,
        group_id: str,
        endpoint: WorkerEndpoint,
        *,
        assigned: Callable[[list[TaskName]], None],
        revoked: Callable[[bool], Awaitable[None]],
    ) -> None:
        """Only this member uses ``target``: a JoinGroup blocks its connection until all members have joined."""
        self._target = target
        self.group_id = group_id
        self._endpoint = endpoint
        self._watch = PeerWatch(self._remove)
        self._assigned = assigned
        self._revoked = revoked
        self.member_id = ""
        self.generation = -1
        self.is_leader = False
        self.is_stable = False
        self.error = ""
        self.conflict = ""
        """Why this worker gets no tasks, if the group belongs to another MirrorMaker."""
        self._knows_owner = endpoint.owner is None
        self._dealt: tuple[MirroredTopic, ...] = ()
        self._topics: tuple[MirroredTopic, ...] = ()
        self._offered = asyncio.Event()
        self._rejoin = asyncio.Event()

    @property
    def owns(self) -> bool:
        """Whether the group is known to be this worker's MirrorMaker's. It changes nothing in the target before."""
        return self._knows_owner and not self.conflict

    def offer(self, topics: Sequence[MirroredTopic]) -> None:
        """Set the topics to mirror. When they change, the leader makes all members rejoin."""
        self._topics = tuple(topics)
        self._offered.set()
        if self.is_leader and self._topics != self._dealt:
            self._rejoin.set()

    def fence(self) -> None:
        """Check the membership at once, because a commit was refused."""
        self._rejoin.set()

    async def find_owner(self) -> None:
        """Find out to whom the group belongs, before this worker joins.

        If the target does not respond, or the group rebalances (then the coordinator does not report what its members
        are), joining shows it.
        """
        if (here := self._endpoint.owner) is None:
            return
        with contextlib.suppress(BrokerError, ApiError):
            request = DescribeGroupsRequest([self.group_id])
            answer = await self._target.call_coordinator(self.group_id, describe_groups.API, request)
            for group in answer.groups:
                if is_moved(ErrorCode.of(group.error_code)):
                    self._target.forget_coordinator(self.group_id)
                if group.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                    return
                if group.members and group.group_state != STABLE:
                    return
                owner = oldest([here, *(owner_in(bytes(member.member_metadata)) for member in group.members)])
                self._owned_by(None if owner == here else owner)

    async def run(self) -> None:
        """Run until cancelled; then leave the group."""
        try:
            while True:
                try:
                    tasks = await self._join()
                    self._assigned(tasks)
                    self.is_stable, self.error = True, ""
                    async with self._watch:
                        lost = await self._stay()
                except (BrokerError, ApiError) as error:
                    lost = True
                    self._failed(error)
                    await asyncio.sleep(PAUSE_S)
                self.is_stable = False
                await self._revoked(lost)
        finally:
            self.is_stable = False
            await self._revoked(False)
            await self._leave(self.member_id)

    def _failed(self, error: BrokerError | ApiError) -> None:
        code = error.code if isinstance(error, ApiError) else ErrorCode.NETWORK_EXCEPTION
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""
        if is_moved(code):
            self._target.forget_coordinator(self.group_id)
        if code not in (
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
        ):
            self.error = str(error)
            logger.warning("group %s: %s", self.group_id, error)

    async def _join(self) -> list[TaskName]:
        self._rejoin.clear()
        request = JoinGroupRequest(
            self.group_id,
            SESSION_TIMEOUT_MS,
            REBALANCE_TIMEOUT_MS,
            self.member_id,
            protocol_type="mirror",
            protocols=[JoinGroupRequestProtocol("in-turn", await self._endpoint.encoded())],
        )
        timeout = (REBALANCE_TIMEOUT_MS + SESSION_TIMEOUT_MS) / 1000
        joined = await self._target.call_coordinator(self.group_id, join_group.API, request, timeout=timeout)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            request.member_id = joined.member_id
            joined = await self._target.call_coordinator(
                self.group_id, join_group.API, request, timeout=timeout
            )
        _check(joined.error_code, "joining")
        self.member_id, self.generation = joined.member_id, joined.generation_id
        self.is_leader = joined.leader == joined.member_id
        assignments = []
        if self.is_leader:
            members = {member.member_id: bytes(member.metadata) for member in joined.members}
            assignments = await self._assign(members)
        sync = SyncGroupRequest(
            self.group_id,
            self.generation,
            self.member_id,
            protocol_type="mirror",
            protocol_name="in-turn",
            assignments=assignments,
        )
        synced = await self._target.call_coordinator(self.group_id, sync_group.API, sync, timeout=timeout)
        _check(synced.error_code, "waiting for the assignment")
        try:
            assignment = decode(bytes(synced.assignment))
        except ValueError as error:
            raise ApiError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the group's leader {joined.leader[:200]!r} is no worker of this mirror: remove it from the group:"
                f" {error}",
            ) from None
        self._watch.peers = next_after(self.member_id, assignment.peers)
        self._owned_by(assignment.owner)
        tasks = assignment.tasks
        logger.info("group %s: generation %d, %d tasks here", self.group_id, self.generation, len(tasks))
        return tasks

    async def _assign(self, members: Mapping[str, bytes]) -> list[SyncGroupRequestAssignment]:
        """As leader, assign tasks to the owner's members, by their metadata.

        Raises ApiError if this worker is not the owner's: it has left, so that another one leads.
        """
        owners = {member: owner_in(metadata) for member, metadata in members.items()}
        owner = oldest(owners.values())
        if self._endpoint.owner not in (None, owner):
            self.is_leader = False
            self._owned_by(owner)
            left, self.member_id = self.member_id, ""
            await self._leave(left)
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS, "left, so that a worker of the owner leads")
        self._owned_by(None)
        with contextlib.suppress(TimeoutError):  # otherwise all workers would lose their tasks for a moment
            async with asyncio.timeout(OFFER_S):
                await self._offered.wait()
        self._dealt = self._topics
        peers = peers_of(members)
        dealt = deal(
            self._dealt, [member for member, of_member in owners.items() if of_member in (None, owner)]
        )
        given = {member: Assignment(tasks, peers) for member, tasks in dealt.items()}
        given |= {member: Assignment([], peers, owner) for member in members.keys() - dealt.keys()}
        return [
            SyncGroupRequestAssignment(member, encode(assignment)) for member, assignment in given.items()
        ]

    def _owned_by(self, owner: Owner | None) -> None:
        """``owner``: another MirrorMaker, or None."""
        self._knows_owner = True
        before, self.conflict = self.conflict, "" if owner is None else conflict(self.group_id, owner)
        if self.conflict and self.conflict != before:
            logger.error("%s", self.conflict)

    async def _stay(self) -> bool:
        """Send heartbeats until the group rebalances; return True if another worker may have the tasks by now."""
        heard = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._rejoin.wait()
                return False
            except TimeoutError:
                pass
            try:
                error = await self._heartbeat()
            except (BrokerError, ApiError) as failure:
                error = ErrorCode.NETWORK_EXCEPTION
                self.error = str(failure)
            if error is ErrorCode.NONE:
                heard, self.error = time.monotonic(), ""
            elif error is ErrorCode.REBALANCE_IN_PROGRESS:
                return False
            elif self._is_lost(error) or time.monotonic() - heard > SESSION_TIMEOUT_MS / 1000:
                return True

    def _is_lost(self, error: ErrorCode) -> bool:
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""
            return True
        return error is ErrorCode.ILLEGAL_GENERATION

    async def _heartbeat(self) -> ErrorCode:
        request = HeartbeatRequest(self.group_id, self.generation, self.member_id)
        answer = await self._target.call_coordinator(
            self.group_id, heartbeat.API, request, timeout=SESSION_TIMEOUT_MS / 2000
        )
        error = ErrorCode.of(answer.error_code)
        if is_moved(error):
            self._target.forget_coordinator(self.group_id)
        return error

    async def _remove(self, member_id: str) -> None:
        """Remove a worker whose process has ended."""
        logger.warning("group %s: worker %s has ended: taking over its tasks", self.group_id, member_id)
        await self._leave(member_id)
        self._rejoin.set()

    async def _leave(self, member_id: str) -> None:
        if not member_id:
            return
        request = LeaveGroupRequest(self.group_id, member_id, [MemberIdentity(member_id)])
        try:
            await self._target.call_coordinator(
                self.group_id, leave_group.API, request, timeout=LEAVE_TIMEOUT_S
            )
        except (BrokerError, ApiError) as error:
            logger.warning("group %s: %s cannot leave: %s", self.group_id, member_id, error)


def _check(code: int, what: str) -> None:
    if code:
        error = ErrorCode.of(code)
        raise ApiError(error, f"{what}: {error.message}")
