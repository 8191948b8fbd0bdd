"""Kafka's protocol and an asynchronous client, shared by the broker and the mirror workers.

protocol/       messages to bytes and back, sans-IO
batch           record batches, as on the wire and on disk
compression     their codecs
client/         connections to the brokers of a cluster
"""

__version__ = "0.1.0"
