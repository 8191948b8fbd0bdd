"""What this broker knows of the cluster: topics, leaders, settings."""
