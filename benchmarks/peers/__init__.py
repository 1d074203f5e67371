"""Lowtide beside its peers: the same tokens for each, each in an environment of its own; ``make peers``."""
