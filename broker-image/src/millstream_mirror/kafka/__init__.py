"""What a worker reads from clusters and creates in them: logs, topics, offsets of groups, its progress."""
