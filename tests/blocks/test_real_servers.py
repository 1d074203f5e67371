"""Servers that others wrote, really started: nginx, and Azurite for Azure. ``make remote`` installs what it can."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lowtide
from lowtide.blocks.asking import MAKER

pytestmark = pytest.mark.remote

ROOT = Path(__file__).parents[2]
AZURITE = ROOT / "build" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
# The account and key that Azurite's documentation gives to everybody.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CONF = """
daemon off; worker_processes 1; pid {place}/nginx.pid; error_log {place}/error.log;
events {{ worker_connections 512; }}
http {{
  log_format bytes '$status $body_bytes_sent'; access_log {place}/access.log bytes;
  client_body_temp_path {place}/b; proxy_temp_path {place}/p; fastcgi_temp_path {place}/f; uwsgi_temp_path {place}/u;
  scgi_temp_path {place}/s; keepalive_timeout 1;
  server {{ listen 127.0.0.1:{port}; root {place}/www; }}
}}
"""
ROWS = np.random.default_rng(0).integers(0, 2**31, (40_000, 256), dtype=np.int32)  # 39 MiB


@pytest.fixture(autouse=True)
def no_maker_left() -> Iterator[None]:
    yield
    MAKER.close()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def answers(port: int) -> None:
    for _ in range(600):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"nothing answers at port {port}")


@pytest.fixture
def nginx() -> Iterator[tuple[str, Path]]:
    if shutil.which("nginx") is None:
        pytest.skip("NOT TESTED: nginx - it is not installed and cannot be installed here")
    place = Path(f"/tmp/lowtide-nginx-{os.getpid()}")  # of every user's reach: its workers are not root
    (place / "www").mkdir(parents=True)
    port = free_port()
    (place / "nginx.conf").write_text(CONF.format(place=place, port=port))
    server = subprocess.Popen(["nginx", "-c", str(place / "nginx.conf"), "-e", str(place / "error.log")])
    try:
        answers(port)
        yield f"http://127.0.0.1:{port}", place
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(place)


def test_two_epochs_over_nginx_fetch_every_byte_once(nginx: tuple[str, Path], tmp_path: Path) -> None:
    address, place = nginx
    np.save(place / "www" / "x.npy", ROWS)
    remote = lowtide.open(f"{address}/x.npy", cache_dir=tmp_path)
    for epoch in range(2):
        seen = np.concatenate([rows[:, 0] for rows in remote.shuffled(512, epoch=epoch, locality="4MiB")])
        assert sorted(seen.tolist()) == sorted(ROWS[:, 0].tolist())
    sent = sum(int(line.split()[1]) for line in (place / "access.log").read_text().splitlines())
    assert sent == (place / "www" / "x.npy").stat().st_size


def test_an_object_that_is_replaced_on_nginx_is_noticed(nginx: tuple[str, Path], tmp_path: Path) -> None:
    address, place = nginx
    np.save(place / "www" / "x.npy", ROWS)
    remote = lowtide.open(f"{address}/x.npy", cache_dir=tmp_path)
    np.save(place / "www" / "new.npy", ROWS + 1)
    os.utime(place / "www" / "new.npy", (1, 1))
    (place / "www" / "new.npy").replace(place / "www" / "x.npy")
    with pytest.raises(lowtide.ReadError, match="expected the object that was opened"):
        remote[30_000]


@pytest.fixture
def azurite(tmp_path: Path) -> Iterator[dict[str, object]]:
    if not AZURITE.exists():
        pytest.skip("NOT TESTED: Azure - Azurite is not installed and cannot be installed here")
    port = free_port()
    flags = ["--disableTelemetry", "--skipApiVersionCheck", "--silent", "--location", str(tmp_path / "blobs")]
    server = subprocess.Popen([AZURITE, "--blobHost", "127.0.0.1", "--blobPort", str(port), *flags])
    try:
        answers(port)
        yield {
            "account_name": ACCOUNT,
            "account_key": KEY,
            "endpoint": f"http://127.0.0.1:{port}/{ACCOUNT}",
            "client_options": {"allow_http": True},
        }
    finally:
        server.terminate()
        server.wait()


def test_a_blob_of_azure_is_an_array(azurite: dict[str, object], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ROWS)
    program = """
        import json, sys, obstore
        from obstore.store import AzureStore
        options, path = json.loads(sys.argv[1]), sys.argv[2]
        import urllib.request, base64, hashlib, hmac, datetime
        name, key, endpoint = options["account_name"], options["account_key"], options["endpoint"]
        when = datetime.datetime.now(datetime.timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
        said = f"PUT\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\nx-ms-date:{when}\\nx-ms-version:2021-08-06\\n/{name}/{name}/arrays\\nrestype:container"
        signed = base64.b64encode(hmac.new(base64.b64decode(key), said.encode(), hashlib.sha256).digest()).decode()
        headers = {"x-ms-date": when, "x-ms-version": "2021-08-06", "Authorization": f"SharedKey {name}:{signed}"}
        asked = urllib.request.Request(f"{endpoint}/arrays?restype=container", method="PUT", headers=headers)
        urllib.request.urlopen(asked).close()
        obstore.put(AzureStore(container_name="arrays", **options), "x.npy", open(path, "rb").read())
    """  # noqa: E501
    import json

    made = [sys.executable, "-c", textwrap.dedent(program), json.dumps(azurite), str(tmp_path / "x.npy")]
    subprocess.run(made, check=True)
    remote = lowtide.open("az://arrays/x.npy", cache_dir=tmp_path / "cache", remote=azurite)
    np.testing.assert_array_equal(remote[[39_999, 0, 20_000]], ROWS[[39_999, 0, 20_000]])
    np.testing.assert_array_equal(np.concatenate(list(remote.chunks(5_000))), ROWS)
