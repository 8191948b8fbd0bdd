"""Quotas of clients: who has which limit, what it has used, and how long it is throttled. No input or output."""
