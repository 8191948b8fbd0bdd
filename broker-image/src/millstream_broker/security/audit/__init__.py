"""The audit log: logins, administrative requests, and denied ones."""
