"""What a reader and its maker agree on: the size of a packet, names of errors, variables that go along, runs of blocks.

Apart from both, so that a program that opens only files imports no sockets.
"""

from __future__ import annotations

from collections.abc import Iterator

from lowtide.errors import WriteError

PACKET = 128 * 1024  # bytes of one message, at most: below what a socket takes by default
KINDS = (
    "CrowdedError",
    "ReadError",
    "WriteError",
    "FormatError",
    "FileNotFoundError",
    "PermissionError",
    "ValueError",
    "TypeError",
)
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy")
VARIABLES = ("AWS_", "AZURE_", "GOOGLE_", *_PROXIES)  # what clients of object stores look at


class CrowdedError(WriteError):
    """There is no room now, beside the blocks that others need. Whoever waits for it gets in line (first_in_line.py);
    callers of the library never see it. ``making``: some of the room goes to blocks that are being made, and will be
    free again."""

    making = False


def in_runs(blocks: list[int], most: int) -> Iterator[list[int]]:
    """Numbers as runs of neighbours, ascending."""
    run: list[int] = []
    for block in sorted(blocks):
        if run and (block != run[-1] + 1 or len(run) == most):
            yield run
            run = []
        run.append(block)
    if run:
        yield run
