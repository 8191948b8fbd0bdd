"""The transaction coordinator, on the coordinator runtime."""
