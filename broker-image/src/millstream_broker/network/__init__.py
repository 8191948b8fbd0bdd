"""Sockets, frames and routes: from bytes to a request and back."""
