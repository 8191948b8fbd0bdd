"""Kafka's error codes: number, whether a retry may help, and meaning.

Numbers, names and the retriable flag are Kafka's (https://kafka.apache.org/protocol#protocol_error_codes), those of
4.1; the texts are ours, except those that Kafka itself sends to clients.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ErrorCode(IntEnum):
    """An error as the protocol carries it: an int16."""

    retriable: bool
    message: str

    def __new__(cls, code: int, retriable: bool, message: str) -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.message = message
        return member

    @classmethod
    def of(cls, code: int) -> ErrorCode:
        """The error of a number; an unknown number is an unknown server error."""
        try:
            return cls(code)  # type: ignore[call-arg]
        except ValueError:
            return cls.UNKNOWN_SERVER_ERROR

    UNKNOWN_SERVER_ERROR = -1, False, "the server met an unexpected error"
    NONE = 0, False, "no error"
    OFFSET_OUT_OF_RANGE = 1, False, "the offset is not within what the partition holds"
    CORRUPT_MESSAGE = 2, True, "a record batch fails its CRC, is cut off or is otherwise corrupt"
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "This server does not host this topic-partition."
    INVALID_FETCH_SIZE = 4, False, "the fetch size is not valid"
    LEADER_NOT_AVAILABLE = 5, True, "the partition has no leader at the moment"
    NOT_LEADER_OR_FOLLOWER = 6, True, "this broker is not the leader, or not a replica, of the partition"
    REQUEST_TIMED_OUT = 7, True, "the request timed out"
    BROKER_NOT_AVAILABLE = 8, False, "the broker is not available"
    REPLICA_NOT_AVAILABLE = 9, True, "the replica is not available on this broker"
    MESSAGE_TOO_LARGE = 10, False, "a record batch is larger than max.message.bytes"
    STALE_CONTROLLER_EPOCH = 11, False, "the controller has been superseded by a newer one"
    OFFSET_METADATA_TOO_LARGE = 12, False, "the metadata of a committed offset is too large"
    NETWORK_EXCEPTION = 13, True, "the connection was lost before a response came"
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "the coordinator is still loading"
    COORDINATOR_NOT_AVAILABLE = 15, True, "the coordinator is not available"
    NOT_COORDINATOR = 16, True, "this broker is not the coordinator"
    INVALID_TOPIC_EXCEPTION = 17, False, "the topic's name is not valid, or the topic may not be changed"
    RECORD_LIST_TOO_LARGE = 18, False, "the record batches are larger than a segment may be"
    NOT_ENOUGH_REPLICAS = 19, True, "fewer replicas are in sync than min.insync.replicas"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True, "written, but to fewer replicas than min.insync.replicas"
    INVALID_REQUIRED_ACKS = 21, False, "acks is not 0, 1 or -1"
    ILLEGAL_GENERATION = 22, False, "the group is in another generation"
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "the group has no protocol in common with the member"
    INVALID_GROUP_ID = 24, False, "the group id is not valid"
    UNKNOWN_MEMBER_ID = 25, False, "the group has no such member"
    INVALID_SESSION_TIMEOUT = 26, False, "the session timeout is not within the broker's bounds"
    REBALANCE_IN_PROGRESS = 27, False, "the group rebalances, join it again"
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "the committed offset is too large to store"
    TOPIC_AUTHORIZATION_FAILED = 29, False, "Topic authorization failed."
    GROUP_AUTHORIZATION_FAILED = 30, False, "Group authorization failed."
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "Cluster authorization failed."
    INVALID_TIMESTAMP = 32, False, "a record's timestamp is out of the range allowed"
    UNSUPPORTED_SASL_MECHANISM = 33, False, "the broker does not offer this SASL mechanism"
    ILLEGAL_SASL_STATE = 34, False, "the request does not fit the state of the authentication"
    UNSUPPORTED_VERSION = 35, False, "this version of the API is not supported"
    TOPIC_ALREADY_EXISTS = 36, False, "a topic of this name exists"
    INVALID_PARTITIONS = 37, False, "the number of partitions is not valid"
    INVALID_REPLICATION_FACTOR = 38, False, "the replication factor is below 1 or above the number of brokers"
    INVALID_REPLICA_ASSIGNMENT = 39, False, "the assignment of replicas is not valid"
    INVALID_CONFIG = 40, False, "the configuration is not valid"
    NOT_CONTROLLER = 41, True, "this broker is not the controller"
    INVALID_REQUEST = 42, False, "the request is not valid"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "the format of the stored records does not allow this"
    POLICY_VIOLATION = 44, False, "a policy of the broker forbids it"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "the producer left out a sequence number"
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "the producer has sent this sequence number before"
    INVALID_PRODUCER_EPOCH = 47, False, "a newer producer of the same id has taken over"
    INVALID_TXN_STATE = 48, False, "the transaction is in a state that does not allow this"
    INVALID_PRODUCER_ID_MAPPING = 49, False, "the producer id is not that of the transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, False, "the transaction timeout is above transaction.max.timeout.ms"
    CONCURRENT_TRANSACTIONS = 51, True, "another request changes the transaction at the moment"
    TRANSACTION_COORDINATOR_FENCED = 52, False, "a newer transaction coordinator has taken over"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "Transactional Id authorization failed."
    SECURITY_DISABLED = 54, False, "no authorizer is set up"
    OPERATION_NOT_ATTEMPTED = 55, False, "not tried, because another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, True, "the log cannot be read or written"
    LOG_DIR_NOT_FOUND = 57, False, "the log folder is not one of the broker's"
    SASL_AUTHENTICATION_FAILED = 58, False, "the authentication failed"
    UNKNOWN_PRODUCER_ID = 59, False, "nothing is known of the producer id"
    REASSIGNMENT_IN_PROGRESS = 60, False, "the partition is being reassigned"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "delegation tokens are switched off"
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "no such delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "the delegation token is somebody else's"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, False, "delegation tokens are not given over this connection"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "Delegation Token authorization failed."
    DELEGATION_TOKEN_EXPIRED = 66, False, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, False, "the type of principal is not supported"
    NON_EMPTY_GROUP = 68, False, "the group has members"
    GROUP_ID_NOT_FOUND = 69, False, "no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "no such fetch session"
    INVALID_FETCH_SESSION_EPOCH = 71, True, "the fetch session is in another epoch"
    LISTENER_NOT_FOUND = 72, True, "the leader has no listener of the name that the request came in on"
    TOPIC_DELETION_DISABLED = 73, False, "delete.topic.enable is false"
    FENCED_LEADER_EPOCH = 74, True, "the leader epoch is older than the broker's"
    UNKNOWN_LEADER_EPOCH = 75, True, "the leader epoch is newer than the broker's"
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "the version of the request does not allow this compression"
    STALE_BROKER_EPOCH = 77, False, "the broker has registered again since"
    OFFSET_NOT_AVAILABLE = 78, True, "the leader does not know its high watermark yet"
    MEMBER_ID_REQUIRED = 79, False, "join again, with the member id that was given"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "the preferred leader is not available"
    GROUP_MAX_SIZE_REACHED = 81, False, "the group has as many members as group.max.size allows"
    FENCED_INSTANCE_ID = 82, False, "another member has taken over this group instance id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "no replica may become leader at the moment"
    ELECTION_NOT_NEEDED = 84, True, "the partition has the leader that it should have"
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "the partition is not being reassigned"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "the group is subscribed to the topic"
    INVALID_RECORD = 87, False, "a record is not valid"
    UNSTABLE_OFFSET_COMMIT = 88, True, "an open transaction may still change the offset"
    THROTTLING_QUOTA_EXCEEDED = 89, True, "a quota is used up"
    PRODUCER_FENCED = 90, False, "a newer producer of the same transactional id has taken over"
    RESOURCE_NOT_FOUND = 91, False, "no such resource"
    DUPLICATE_RESOURCE = 92, False, "the request names a resource twice"
    UNACCEPTABLE_CREDENTIAL = 93, False, "the credential does not meet the requirements"
    INCONSISTENT_VOTER_SET = 94, False, "the voters differ"
    INVALID_UPDATE_VERSION = 95, False, "the version given for the update is not valid"
    FEATURE_UPDATE_FAILED = 96, False, "features cannot be updated"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "the forwarded principal cannot be read"
    SNAPSHOT_NOT_FOUND = 98, False, "no such snapshot"
    POSITION_OUT_OF_RANGE = 99, False, "the position is not within the snapshot"
    UNKNOWN_TOPIC_ID = 100, True, "This server does not host this topic ID."
    DUPLICATE_BROKER_REGISTRATION = 101, False, "another broker has registered under this id"
    BROKER_ID_NOT_REGISTERED = 102, False, "no broker has registered under this id"
    INCONSISTENT_TOPIC_ID = 103, True, "the topic's id differs from that of the log"
    INCONSISTENT_CLUSTER_ID = 104, False, "this is another cluster"
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "the fetch session mixes topic ids and names"
    INELIGIBLE_REPLICA = 107, False, "the replica may not join the ISR"
    NEW_LEADER_ELECTED = 108, False, "the change of the ISR made another leader"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "the offset is in tiered storage"
    FENCED_MEMBER_EPOCH = 110, False, "the coordinator has fenced the member's epoch"
    UNRELEASED_INSTANCE_ID = 111, False, "another member still holds the group instance id"
    UNSUPPORTED_ASSIGNOR = 112, False, "the broker does not offer this assignor"
    STALE_MEMBER_EPOCH = 113, False, "the member's epoch is old"
    MISMATCHED_ENDPOINT_TYPE = 114, False, "the request went to the wrong type of endpoint"
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "there is no such type of endpoint here"
    UNKNOWN_CONTROLLER_ID = 116, False, "no such controller"
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "no such telemetry subscription"
    TELEMETRY_TOO_LARGE = 118, False, "too much telemetry in one request"
    INVALID_REGISTRATION = 119, False, "the controller considers the registration invalid"
    TRANSACTION_ABORTABLE = 120, False, "the transaction has failed and has to be aborted"
    INVALID_RECORD_STATE = 121, False, "the record is in a state that does not allow this"
    SHARE_SESSION_NOT_FOUND = 122, True, "no such share session"
    INVALID_SHARE_SESSION_EPOCH = 123, True, "the share session is in another epoch"
    FENCED_STATE_EPOCH = 124, False, "the share coordinator has fenced the epoch"
    INVALID_VOTER_KEY = 125, False, "the voter's key differs from that of the receiver"
    DUPLICATE_VOTER = 126, False, "the voter is one already"
    VOTER_NOT_FOUND = 127, False, "no such voter"
    INVALID_REGULAR_EXPRESSION = 128, False, "the regular expression is not valid"
    REBOOTSTRAP_REQUIRED = 129, False, "the client has to start again from its bootstrap servers"
    STREAMS_INVALID_TOPOLOGY = 130, False, "the streams topology is not valid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "the epoch of the streams topology is not valid"
    STREAMS_TOPOLOGY_FENCED = 132, False, "the epoch of the streams topology is old"
    SHARE_SESSION_LIMIT_REACHED = 133, True, "the broker has as many share sessions as it allows"


MAX_MESSAGE = 8000
"""Limit in characters. A client's text may occur in a message several times; the protocol allows 32,767 bytes."""


COORDINATOR_ERRORS: Final = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)
"""Errors after which another broker may be the coordinator, or this one soon: nothing was changed."""


class ApiError(Exception):
    """An error with a protocol code; ``message`` says more than the code's own text, if possible."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        message = code.message if message is None else message
        if len(message) > MAX_MESSAGE:
            message = f"{message[:MAX_MESSAGE]}…"
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"
