"""The certificates of a Cluster: its authorities, what they issue, and what to issue, publish and retire next."""
