"""Validates resources as the API server does."""
