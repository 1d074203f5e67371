"""What the tests of a finished corpus share with those that prepare one."""

from __future__ import annotations

from tests.prepare.conftest import encoded, tokenizer

__all__ = ["encoded", "tokenizer"]
