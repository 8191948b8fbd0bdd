"""This broker's part in a cluster: joining, liveness of others, requests for the controller, lost data."""
