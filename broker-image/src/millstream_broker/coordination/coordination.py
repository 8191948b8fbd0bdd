"""One broker's view of the cluster's shared state, a tree of nodes in any store.

The broker registers as /brokers/ids/N, and learns of topics from the controller (`update`). It writes administrators'
requests straight into the tree, and such a call returns when the controller has sent this broker the result. A broker
campaigns for /controller while it is registered; the winner gets a `ControllerStore`.

- While the store cannot be reached, the broker keeps the last known state.
- When the session ends, its ephemeral nodes are gone: a former controller steps down, and the broker
  registers again, with a new epoch, as soon as there is a session.
- A broker's id belongs to one log directory at a time. A registration with our own directory is that of an earlier
  incarnation, which is dead, because we hold the directory's lock: we take it over at once, unless our directory is a
  copy (`takes_over`). For any other registration, the broker waits as long as a session may live, and then fails to
  start.
- A write has happened, durably and whole, when the call returns.
- After a lost response (`Unavailable`), the stored state is read before anything is written again.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace

from millstream_kafka.acl import ResourcePattern
from millstream_kafka.protocol.errors import ApiError
from millstream_kafka.protocol.schema import ZERO_UUID
from millstream_kafka.protocol.update_metadata import UpdateMetadataRequest
from millstream_process import supervision

from ..runtime.slices import finish, yield_to_others
from . import (
    NO_LEADER,
    BrokerRecord,
    ClusterState,
    Conflict,
    PartitionRecord,
    TopicRecord,
    same_state,
    takeover,
    topic_nodes,
    tree,
    verification,
    view,
    writes,
)
from .acls import Acls, Change
from .candidacy import Candidacy
from .configs import Configs
from .controllership import ControllerStore
from .entities import Entity
from .fencing import Elected, Fencing
from .isr_notes import IsrNotes
from .own_tree import NotOurs, OwnTree
from .registration import OwnRegistration
from .restriction import Restriction
from .state_waits import StateWaits
from .stores import BadVersionError, NoNodeError, State, Store, Unavailable
from .task_coalescer import TaskCoalescer
from .topic_changes import TopicChanges

DELETIONS_KEPT = 10_000
LEAVE_S = 5.0
"""Time limit of leaving while the store is down."""
SAY_S = 10.0

log = logging.getLogger(__name__)


class Coordination:
    """Call `connect`, then `join`. All times are in seconds."""

    def __init__(
        self,
        nodes: Store,
        known_cluster_id: str | None,
        *,
        campaigns: bool = True,
        has_acls: bool = False,
        check: Callable[[str | None], None] = lambda stored: None,
        fail: Callable[[str], None] = lambda why: None,
    ) -> None:
        """`known_cluster_id` is the cluster of the logs, whose id a new tree takes.

        `has_acls`: access rules are read and kept. `check` gets the tree's cluster id before anything is written, None
        if it has none, and may raise CoordinationError. `fail` ends the broker if the tree becomes an older copy of
        itself.
        """
        self.cluster_id = known_cluster_id or ""
        self.campaigns = campaigns
        self.changes: Callable[[ClusterState], None] = lambda state: None
        self.on_elected: Callable[[ControllerStore], None] = lambda store: None
        self.on_deposed: Callable[[], None] = lambda: None
        self.on_entities: list[Callable[[frozenset[Entity]], None]] = []
        """Called with users, clients and addresses whose configuration may have changed."""
        self.on_older: Callable[[], Awaitable[None]] = _nothing
        """Called before the broker ends because the tree has become an older copy of itself."""
        self.on_accepted: Callable[[], None] = lambda: None
        """Called when the consequences of our registration, as unclean or ahead, are stored."""
        self.secret = b""
        """The cluster's secret; known once connected."""
        self._known_cluster_id = known_cluster_id
        self._check = check
        self._fail = fail
        self._nodes = OwnTree(nodes, self._verify)
        self._nodes.on_state = self._session_became
        self._is_prepared = False
        """Whether the cluster's id is known from the tree."""
        self._shown: dict[str, int] = {}
        """The generations that this broker has shown."""
        self._configs = Configs(self._nodes, self._configs_changed)
        self.acls = Acls(self._nodes, lambda path: self._coalescer.need("changes of access rules"))
        self._has_acls = has_acls
        self._registration = OwnRegistration(self._nodes, lambda: self._coalescer.need("registration"))
        self._coalescer: TaskCoalescer = TaskCoalescer(
            self._nodes,
            {
                "registration": self._renew_registration,
                "ended processes": self._registration.end_others,
                "the controller": self._follow_controller,
                "configuration": self._load_configs,
                "changes of configuration": self._configs.read_notes,
                "access rules": self._load_acls,
                "changes of access rules": self._read_acls,
                "deleted topics": self._drop_deleted,
            },
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._state: ClusterState | None = None
        self._fencing = Fencing(self._nodes)
        self._candidacy = Candidacy(
            self._nodes,
            self._configs,
            self._fencing,
            lambda: self._coalescer.need("the controller"),
            self._elected,
            lambda: self.on_deposed(),
        )
        self._waits = StateWaits(lambda: self._known)
        self.topics = TopicChanges(self._nodes, self._waits, lambda: self._known)
        self._updating = asyncio.Lock()
        self._isr_notes = IsrNotes(self._nodes)
        self._restriction = Restriction(self._nodes)
        self._deletions: dict[str, uuid.UUID] = {}
        """Topic ids of the latest deletions that were announced here, by name."""
        self._is_leaving = False

    @property
    def is_connected(self) -> bool:
        return self._nodes.is_connected

    @property
    def broker_epoch(self) -> int:
        """The epoch of the newest registration."""
        broker = self._registration.broker
        return broker.epoch if broker is not None else -1

    @property
    def _known(self) -> ClusterState:
        """The cluster as this broker knows it, once it has joined."""
        assert self._state is not None
        return self._state

    @property
    def _registered(self) -> BrokerRecord:
        """This broker under its newest epoch, once it has joined."""
        broker = self._registration.broker
        assert broker is not None
        return broker

    # Joining and leaving

    async def connect(self) -> None:
        """Wait for the store without limit, and read everything needed to open logs. Raises CoordinationError."""
        self._nodes.start()
        waiting = supervision.run("waiting for coordination", self._log_waiting())
        try:
            await self._nodes.persist(self._prepare, deadline=None)
        finally:
            waiting.cancel()

    async def _log_waiting(self) -> None:
        await asyncio.sleep(1.0)
        while True:
            if not self._nodes.is_connected:
                log.warning("waiting for %s, which cannot be reached", self._nodes)
            await asyncio.sleep(SAY_S)

    async def _prepare(self) -> None:
        self.cluster_id = await writes.agree_on_cluster_id(self._nodes, self._known_cluster_id, self._check)
        self._is_prepared = True
        self.secret = await writes.agree_on_secret(self._nodes)
        await self._load_configs()
        await self._load_acls()

    async def adopt(self, topics: Callable[[], Collection[TopicRecord]]) -> None:
        """Before joining a tree that nobody ever joined: add topics whose logs are here; CoordinationError."""
        if await self._nodes.get(tree.CONTROLLER_EPOCH) is None and (found := topics()):
            log.warning(
                "%s is new: continuing with the %d topics whose logs are here", self._nodes, len(found)
            )
            await takeover.add_topics(self._nodes, found)

    def stored_config(self, topic: str) -> Mapping[str, str]:
        """The configuration of a topic of that name; its replicas are unknown until a controller announces them."""
        return self._configs.topics.get(topic, {})

    @property
    def entity_configs(self) -> Mapping[Entity, Mapping[str, str]]:
        """The configuration of users, clients and addresses that have any; known once connected."""
        return self._configs.entities

    async def generations(self, broker_id: int) -> Mapping[str, int]:
        """The last generation of each of the broker's log directories, by directory id; known before joining."""
        return await self._nodes.persist(
            lambda: writes.read_generations(self._nodes, broker_id), deadline=None
        )

    async def versions(
        self, partitions: Collection[tuple[str, uuid.UUID, int]], *, newest: bool = False
    ) -> Mapping[tuple[uuid.UUID, int], tuple[int, int]]:
        """Leader epoch and version of these partitions' states; `newest`: no server that is behind responds."""

        async def read() -> Mapping[tuple[uuid.UUID, int], tuple[int, int]]:
            if newest:
                await self._nodes.sync()
            return await writes.read_versions(self._nodes, partitions)

        return await self._nodes.persist(read, deadline=None)

    async def show_generations(self, broker_id: int, generations: Mapping[str, int]) -> None:
        """Raises Conflict if a later one is known: another process uses a copy of that directory."""
        await self._nodes.persist(lambda: writes.show_generations(self._nodes, broker_id, generations))
        self._shown.update(generations)

    async def join(self, broker: BrokerRecord, *, takes_over: bool = True) -> ClusterState:
        """Register this broker, under a new epoch; raises CoordinationError if its id is taken.

        `takes_over`: a registration with our directory is that of an earlier process of ours, which is dead.
        """
        registered = await self._nodes.persist(
            lambda: self._registration.register_patiently(broker, takes_over), deadline=None
        )
        self._state = ClusterState(
            self.cluster_id,
            {broker.broker_id: registered},
            {},
            NO_LEADER,
            broker_configs=dict(self._configs.brokers),
        )
        self._tasks.append(supervision.keep("ZooKeeper's watches", self._coalescer.run))
        self._tasks.append(supervision.keep("ISR notes", self._isr_notes.run))
        self._tasks.append(supervision.keep("access to nodes", self._restriction.run))
        self._coalescer.need("the controller", "changes of configuration", "changes of access rules")
        return self._state

    def _elected(self, store: ControllerStore) -> None:
        self.on_elected(store)
        self._restriction.need()

    def withdraw(self) -> None:
        """From now on this broker neither registers again nor stands for election."""
        self._is_leaving = True

    async def leave(self) -> None:
        """Leave, so that nobody must wait for the session's end; within LEAVE_S even if the store is down."""
        self.withdraw()
        self.changes = lambda state: None
        self._candidacy.depose()
        await supervision.cancel(self._tasks)
        self._tasks.clear()
        await self._nodes.close(min(LEAVE_S, self._nodes.timeout))

    # The session

    async def _verify(self, nodes: Store) -> None:
        """Raise NotOurs unless the tree is still this cluster's; end the broker if it is older than it was."""
        if not self._is_prepared:
            return
        if why := await verification.foreign(nodes, self.cluster_id):
            raise NotOurs(why)
        await nodes.get(tree.CLUSTER_SECRET)  # which brokers alone may read
        if self._registration.broker is not None and await self._older(nodes):
            await nodes.sync()  # another server may only be behind
            if why := await self._older(nodes):
                await self.on_older()
                self._fail(
                    f"{nodes} was restored from an older copy: {why}. The broker ends, because what it knows is newer."
                    " Start it again: the brokers then compare their logs."
                )
                raise NotOurs(f"{nodes} is an older copy: {why}")

    async def _older(self, nodes: Store) -> str:
        """What the tree has forgotten of what this broker has seen there; empty if nothing."""
        us = self._registered.broker_id
        return (
            await verification.older_generation(nodes, us, self._shown)
            or await self._fencing.contradicted(nodes)
            or await verification.older_state(
                nodes, self._known.topics, lambda record: self._is_controller or us in record.replicas
            )
        )

    def _session_became(self, state: State, is_new: bool) -> None:
        if state is State.CONNECTED:
            log.info("connected to %s%s", self._nodes, ", in a new session" if is_new else "")
            if self._registration.broker is not None:
                if is_new:
                    self._coalescer.need("configuration", "access rules", "deleted topics")
                self._coalescer.need(
                    "registration", "the controller", "changes of configuration", "changes of access rules"
                )
            if (store := self._candidacy.store) is not None:
                store.reconnected()
        elif state is State.SUSPENDED:
            log.warning("lost the connection to %s: continuing with the cached state", self._nodes)
        else:
            log.warning("the session with %s is over", self._nodes)
            self._candidacy.depose()

    # OwnRegistration

    def lost_data(self) -> None:
        """A log directory has failed: register again, as unclean, so that the controller elects others."""
        self._registration.lost_data(self._registered)

    async def _renew_registration(self) -> None:
        if self._is_leaving:
            return
        was = self._registered
        registered = await self._registration.renew(was)
        if (was.unclean or was.ahead) and not (registered.unclean or registered.ahead):
            self.on_accepted()
        brokers = {**self._known.brokers, self._registered.broker_id: self._registered}
        self._become(replace(self._known, brokers=brokers))

    def process_ended(self, broker: BrokerRecord) -> None:
        """Another broker's process has ended, in this incarnation: act as if its session had expired.

        That is safe even if it is not true: a live broker registers again, with a new epoch.
        """
        self._registration.ended.append(broker)
        self._coalescer.need("ended processes")

    async def _drop_deleted(self) -> None:
        """In a new session: drop topics that were deleted in the meantime."""
        stored = set(await self._nodes.children(tree.TOPICS) or ())
        if self._known.topics.keys() - stored:
            topics = {name: topic for name, topic in self._known.topics.items() if name in stored}
            self._become(replace(self._known, topics=topics))

    # The controller

    @property
    def _is_controller(self) -> bool:
        return self._candidacy.store is not None

    async def _follow_controller(self) -> None:
        controller_id = await self._candidacy.follow(
            self._registered.broker_id, lambda: self.campaigns and not self._is_leaving
        )
        if controller_id is not None and controller_id != self._known.controller_id:
            self._become(replace(self._known, controller_id=controller_id))

    # Updates from the controller

    async def check(self, controller_id: int, controller_epoch: int, broker_epoch: int) -> None:
        """Raises ApiError unless the request is from the current controller and for this registration."""
        await self._fencing.confirm(Elected(controller_epoch, controller_id), broker_epoch, self.broker_epoch)

    async def update(self, request: UpdateMetadataRequest) -> None:
        """Apply the controller's update; raises ApiError if it is out of date."""
        controller = Elected(request.controller_epoch, request.controller_id)
        await self._fencing.confirm(controller, request.broker_epoch, self.broker_epoch)
        async with self._updating:
            read = await finish(view.read(request))
            await yield_to_others()  # the rest must happen in one step
            known = self._known.topics
            new = [
                topic.topic_name
                for topic in request.topic_states
                if topic.topic_name not in known or known[topic.topic_name].topic_id != topic.topic_id
            ]
            try:
                await self._configs.ensure(new)
            except Unavailable as error:
                log.warning("topics use the default configuration for now: %s", error)
                self._coalescer.need("configuration")
            self._fencing.check(controller, request.broker_epoch, self.broker_epoch)
            for announced in read:
                self._note_deletion(announced)
            state = view.merged(self._known, request, read, lambda name: self._configs.topics.get(name, {}))
            for name in self._known.topics.keys() - state.topics.keys():
                self._configs.forget(name)
            self._become(self._with_self(state))

    def _note_deletion(self, announced: view.AnnouncedTopic) -> None:
        self._deletions.pop(announced.name, None)
        if announced.partitions is None:
            self._deletions[announced.name] = announced.topic_id
            if len(self._deletions) > DELETIONS_KEPT:
                del self._deletions[next(iter(self._deletions))]

    def announced_id(self, name: str) -> uuid.UUID:
        """The id of the topic of that name that the controller has announced, or whose deletion; else ZERO_UUID."""
        topic = self._known.topics.get(name)
        return self._deletions.get(name, ZERO_UUID) if topic is None else topic.topic_id

    async def stored_topics(self, names: Collection[str]) -> Mapping[str, TopicRecord | None]:
        """Topics with their assignments as they are stored, None where there is none. Raises Unavailable."""
        return await topic_nodes.stored(self._nodes, names)

    def _with_self(self, state: ClusterState) -> ClusterState:
        """The state with our own record, which has the epoch; the controller may not have included us yet."""
        return replace(state, brokers={**state.brokers, self._registered.broker_id: self._registered})

    def _become(self, state: ClusterState) -> None:
        self._state = state
        self.changes(state)
        self._waits.resolve(state)

    # Configuration

    async def _load_configs(self) -> None:
        await self._configs.load(lambda path: self._coalescer.need("changes of configuration"))

    def _configs_changed(self, entities: set[str]) -> None:
        if (store := self._candidacy.store) is not None:
            store.configs_changed(entities)
        named = frozenset(found for path in entities if (found := Entity.from_path(path)) is not None)
        for callback in self.on_entities if named else ():
            callback(named)
        if self._state is None or len(named) == len(entities):
            return
        self._become(view.with_configs(self._known, entities, self._configs.topics, self._configs.brokers))

    async def set_topic_config(
        self, name: str, topic_id: uuid.UUID, config: Mapping[str, str], named: Collection[str]
    ) -> None:
        """See `Configs.write_topic`."""
        await self._nodes.persist(lambda: self._configs.write_topic(name, topic_id, config, named))

    async def set_broker_config(self, broker_id: int | None, config: Mapping[str, str]) -> None:
        await self._nodes.persist(lambda: self._configs.write_broker(broker_id, config))

    async def change_entity(
        self, entity: Entity, changed: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        """Replace the configuration of a user, client or address by the result of `changed`.

        `changed` gets the stored configuration, and may raise. It is called again for each attempt: after a lost
        response, its own result may be stored. When this returns, `entity_configs` has the new configuration.
        """

        async def attempt(stored: Mapping[str, str]) -> Mapping[str, str]:
            return changed(stored)

        await self._nodes.persist(lambda: self._configs.change(entity.path, attempt))

    # Access rules

    async def _load_acls(self) -> None:
        if self._has_acls:
            await self.acls.load()

    async def _read_acls(self) -> None:
        if self._has_acls:
            await self.acls.read_notes()

    async def change_acls(
        self, changes: Mapping[ResourcePattern, Change]
    ) -> Mapping[ResourcePattern, ApiError]:
        """Change access rules; returns the errors of those patterns whose change failed. See `Acls.change`."""
        return await self._nodes.persist(lambda: self.acls.change(changes))

    # Partitions

    async def write_partition(self, name: str, index: int, record: PartitionRecord) -> PartitionRecord:
        """Called by the leader. After Unavailable either record may be stored; write the same again then."""
        path, data = tree.state_path(name, index), tree.state_json(record)
        try:
            written = replace(record, version=await self._nodes.set(path, data, record.version))
        except (BadVersionError, NoNodeError):
            node = await self._nodes.get(path)
            if node is None:
                raise Conflict(f"{name}-{index} is being deleted") from None
            written = tree.with_state(path, record, node.data, node.version)
            if node.version != record.version + 1 or not same_state(written, record):
                self._become(view.with_partition(self._known, name, index, written, keep_replicas=True))
                raise Conflict(f"{name}-{index} was changed meanwhile") from None
        self._isr_notes.leave((name, index))
        self._become(view.with_partition(self._known, name, index, written))
        return written


async def _nothing() -> None:
    pass
