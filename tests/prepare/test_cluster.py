"""The Ray engine on a real cluster of several nodes: the same bytes, also when a node is lost on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.prepare.conftest import make_documents, snapshot, write_jsonl

from lowtide.errors import FormatError
from lowtide.prepare import Request, Resources, prepare
from lowtide.prepare.job import Status

ray = pytest.importorskip(
    "ray", reason="NOT TESTED: the Ray engine - ray is not installed (pip install 'lowtide[ray]')"
)

# Ray's own processes and threads warn about what they do; none of it is ours.
pytestmark = [pytest.mark.slow, pytest.mark.one_process, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("texts")
    documents = make_documents(3000, longest=2500)
    write_jsonl(directory / "a.jsonl", documents[:2500])
    write_jsonl(directory / "b.jsonl.gz", documents[2500:])
    return directory


def test_a_lost_node_changes_no_byte(tmp_path: Path, ray_cluster: Any, texts: Path, tokenizer: Path) -> None:
    request = Request(tokenizer=str(tokenizer), shard_tokens=2_000_000, val=0.05, dedup=True)
    prepare([str(texts)], tmp_path / "local", request, Resources(workers=1))
    lost: list[Any] = []

    def lose_one(status: Status) -> None:
        if status.tokens and not lost:
            node = ray_cluster.worker_nodes.copy().pop()
            lost.append(node)
            ray_cluster.remove_node(node, allow_graceful=False)
            ray_cluster.add_node(num_cpus=1, object_store_memory=128 << 20)

    prepare([str(texts)], tmp_path / "ray", request, Resources(engine="ray"), progress=lose_one)
    assert lost, "no node was lost: the run was over before"
    assert snapshot(tmp_path / "ray") == snapshot(tmp_path / "local")


class StoppedError(Exception):
    """Stands for the driver being killed."""


def test_a_run_begun_on_ray_goes_on_locally_with_the_same_bytes(
    tmp_path: Path, ray_cluster: Any, texts: Path, tokenizer: Path
) -> None:
    request = Request(tokenizer=str(tokenizer), shard_tokens=2_000_000)
    prepare([str(texts)], tmp_path / "local", request, Resources(workers=1))

    def stop(status: Status) -> None:
        if status.shards:
            raise StoppedError

    with pytest.raises(StoppedError):
        prepare([str(texts)], tmp_path / "out", request, Resources(engine="ray"), progress=stop)
    found = prepare([str(texts)], tmp_path / "out", request, Resources(workers=1))
    assert found.went_on
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "local")


def test_bad_input_on_a_node_is_the_error_it_is_here(tmp_path: Path, ray_cluster: Any, tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\nbroken\n')
    with pytest.raises(FormatError, match="line 2: expected a JSON object"):
        prepare([str(tmp_path / "a.jsonl")], tmp_path / "out", Request(), Resources(engine="ray"))
