"""Servers that fail: what passes is waited out, what does not is told at once, and no wrong byte comes through."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.blocks.conftest import Behind
from tests.blocks.server import FaultyServer

import lowtide
from lowtide.blocks import remote
from lowtide.blocks.remote import RemoteObject

PASSING: dict[str, dict[str, float]] = {
    "every third answer is 503": {"busy_every": 3},
    "every second body is cut": {"cut_every": 2},
    "every second range is the wrong one": {"shift_range_every": 2},
    "answers are late": {"latency": 0.05},
    "idle connections are closed": {"idle": 0.05},
    "all at once": {"busy_every": 3, "cut_every": 5, "shift_range_every": 7, "idle": 0.05},
}


@pytest.mark.parametrize("fault", PASSING)
def test_every_row_of_two_epochs_arrives_once_over_a_faulty_server(behind: Behind, fault: str) -> None:
    for name, value in PASSING[fault].items():
        setattr(behind.server.faults, name, value)
    remote = behind.open()
    for epoch in range(2):
        both = lowtide.together(remote, lowtide.open(behind.local)).shuffled(512, epoch=epoch)
        numbers = np.concatenate(list(both), axis=1)
        np.testing.assert_array_equal(numbers[0], numbers[1])
        assert len(numbers[0]) == len(behind.rows)


def test_a_server_that_is_gone_for_a_while_is_waited_for(behind: Behind) -> None:
    remote = behind.open()
    behind.server.faults.gone = True
    back = threading.Timer(1.0, lambda: setattr(behind.server.faults, "gone", False))
    back.start()
    np.testing.assert_array_equal(remote[30_000], behind.rows[30_000])
    back.join()


def test_a_server_that_stays_away_is_an_error_that_names_it(behind: Behind) -> None:
    remote = behind.open(remote={"patience": 1})
    behind.server.faults.status = 503
    with pytest.raises(lowtide.ReadError, match=r"expected an answer of 127.* within 1 s, got status 503"):
        remote[30_000]
    behind.server.faults.status = 0
    np.testing.assert_array_equal(remote[30_000], behind.rows[30_000])  # and it goes on


def test_an_object_written_anew_is_an_error_and_never_a_mixture(behind: Behind) -> None:
    remote = behind.open()
    first = remote[0]
    behind.server.objects["data/x.npy"] = behind.server.objects["data/x.npy"][:-1] + b"!"
    with pytest.raises(lowtide.ReadError, match="expected the object that was opened"):
        remote[30_000]
    np.testing.assert_array_equal(remote[0], first)
    again = behind.open()
    assert again[39_999, 31] != behind.rows[39_999, 31]


def test_a_shorter_object_without_an_etag_is_an_error_naming_both_sizes(behind: Behind) -> None:
    behind.server.faults.no_etag = True
    remote = behind.open()
    behind.server.objects["data/x.npy"] = behind.server.objects["data/x.npy"][:4_000_000]
    with pytest.raises(lowtide.ReadError, match=r"size \d+.*got another one"):
        remote[20_000]


def test_refusals_say_what_to_do(behind: Behind) -> None:
    with pytest.raises(FileNotFoundError, match="expected an object, got none of that name"):
        lowtide.open(behind.server.url("nothing.npy"), cache_dir=behind.cache)
    behind.server.faults.status = 403
    with pytest.raises(lowtide.ReadError, match="expected permission to read it, got refused"):
        behind.open()
    behind.server.faults.status = 0
    behind.server.faults.whole = True
    with pytest.raises(lowtide.ReadError, match="whole objects only"):
        behind.open()


@pytest.mark.parametrize(
    "stated",
    [{"disk": "1MiB"}, {"remote": 5}, {"remote": {"x": object()}}, {"disk": "much"}, {"cache_dir": ""}],
)
def test_options_that_make_no_sense_are_refused(behind: Behind, stated: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError), match=r"(disk|remote|cache_dir): expected"):
        behind.open(**stated)


def test_a_host_that_is_not_known_is_named_and_not_waited_for() -> None:
    """It was asked for again for three minutes. No resolver asks anybody about a name with an empty part."""
    with pytest.raises(
        lowtide.ReadError, match=r"network address of no\.\.such\.host:9000, got .* how the name"
    ) as told:
        lowtide.open("http://me:s3cr3t@no..such.host:9000/x.npy?sig=s3cr3t")
    assert "s3cr3t" not in str(told.value)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Seconds instead of minutes. obstore is used in this process, which forks nobody meanwhile."""
    monkeypatch.setattr(remote, "UNSURE", 1.0)
    monkeypatch.setattr(remote, "_PAUSES", (0.1, 0.1))
    monkeypatch.setattr(remote, "_ANSWERED", set())
    yield
    remote._FIRST.clear()


def refused(address: str, pinned: dict[str, Any] | None = None) -> str:
    """What is said at the end of a patience of three seconds, or of a shorter one."""
    with pytest.raises(lowtide.ReadError) as told:
        RemoteObject(address, {"patience": 3}, pinned).make(0, 100, lambda offset, piece: None)
    return str(told.value)


@pytest.mark.usefixtures("hurried")
def test_a_store_where_nothing_listens_is_named_and_not_waited_for_as_long_as_one_that_answered() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and nobody listens
        host = f"127.0.0.1:{nobody.getsockname()[1]}"
        told = refused(f"http://me:s3cr3t@{host}/x.npy?sig=s3cr3t")
        assert "s3cr3t" not in told
        assert f"http://{host}/x.npy: expected an answer of {host} within 1 s, got a refused connection at the" in told
        opened = {"size": 100, "etag": None, "modified": None}
        assert f"an answer of {host} within 3 s, got a refused connection" in refused(f"http://{host}/x", opened)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("status", [0, 404, 503])
def test_a_store_that_answered_once_whatever_it_said_is_waited_for(status: int) -> None:
    with FaultyServer({"x": bytes(100)}) as server:
        address = server.url("x")
        server.faults.status = status
        with contextlib.suppress(lowtide.ReadError, FileNotFoundError):
            RemoteObject(address, {"patience": 0}).look(100)
    assert "within 3 s, got a refused connection" in refused(address)


def test_no_secret_is_printed_stored_or_left_in_a_state(behind: Behind, capfd: pytest.CaptureFixture[str]) -> None:
    behind.server.faults.token = "s3cr3t"
    address = behind.address + "?token=s3cr3t"
    remote = lowtide.open(address, cache_dir=behind.cache, remote={"patience": 0.5})
    behind.server.faults.status = 500
    with pytest.raises(lowtide.ReadError) as problem:
        remote[25_000:]
    behind.server.faults.status = 403
    with pytest.raises(lowtide.ReadError) as refused:
        lowtide.open(address, cache_dir=behind.cache)
    behind.server.faults.status = 0
    iterator = remote.shuffled(256)
    next(iterator)
    said = [
        repr(remote),
        str(remote.plan()),
        remote._repr_html_(),
        json.dumps(iterator.state_dict()),
        repr(remote.layout),
    ]
    said += [str(problem.value), repr(problem.value), str(refused.value), "".join(capfd.readouterr())]
    for place, _, files in os.walk(behind.cache):
        said += [place, *files]
        said += [Path(place, file).read_bytes().decode("latin-1") for file in files if file != "data"]
    assert not [text for text in said if "s3cr3t" in text]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(remote))[-1], behind.rows[-1])  # which still may read


def test_what_is_here_is_read_without_a_request(behind: Behind) -> None:
    remote = behind.open()
    opened = behind.server.seen.requests
    np.testing.assert_array_equal(remote[:], behind.rows)
    fetched = behind.server.seen.requests
    assert fetched > opened  # the control: what is not here is asked for
    np.testing.assert_array_equal(remote[:8_000], behind.rows[:8_000])
    assert behind.server.seen.requests == fetched
