"""Mode Identity: topics of the target as replicas of the source's."""
