"""Fixtures of every module here that has ``IDS`` and none of its own."""

from tests.feeds import path, tokens

__all__ = ["path", "tokens"]
