"""Which worker mirrors which partition."""
