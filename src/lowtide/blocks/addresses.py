"""Addresses of objects: which store they name, and what of them may be shown.

``s3://bucket/key``, ``gs://``, ``az://container/blob``, ``https://`` and ``http://``. A query may carry a secret (a
signed address), and so may a user's name in front of the host: neither is ever shown, stored or hashed.
"""

from __future__ import annotations

import re

SCHEMES = ("s3", "gs", "az", "https", "http")
MAGIC = re.compile(r"[*?\[]")
# pathlib makes s3://bucket/x into s3:/bucket/x
_ADDRESS = re.compile(r"(s3|gs|az|https?):/{1,2}([^/].*)", re.IGNORECASE | re.DOTALL)


def address_of(text: str) -> str | None:
    """``text`` as an address, spelt in one way; None where it names a file here."""
    found = _ADDRESS.fullmatch(text)
    return None if found is None else f"{found[1].lower()}://{found[2]}"


def is_address(text: object) -> bool:
    return isinstance(text, str) and _ADDRESS.fullmatch(text) is not None


def shown(address: str) -> str:
    """The address without what may be secret in it: its query, fragment, user and password."""
    bare = address
    if address.startswith("http"):
        bare = re.split(r"[?#]", address, maxsplit=1)[0]
    scheme, _, rest = bare.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def split_address(address: str) -> tuple[str, str, str]:
    """Scheme, bucket (for http: the host) and key."""
    scheme, _, rest = address.partition("://")
    bucket, _, key = rest.partition("/")
    return scheme, bucket, key
