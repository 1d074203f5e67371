"""Tensors from feeds: shared memory, widening, a state that counts what was received, and ranks in a real group."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.feeds import numbered, raw_file

import lowtide

torch = pytest.importorskip("torch", reason="NOT TESTED: torch is not installed, so nothing of lowtide.torch ran")
from lowtide.torch import FeedDataset, tensors  # noqa: E402

COUNT, LENGTH, BATCH = 8000, 40, 12
IDS = numbered(COUNT)


def feed_of(tokens: lowtide.Tokens, **more: Any) -> lowtide.Feed:
    return tokens.batches(BATCH, length=LENGTH, seed=4, **more)


def test_tensors_are_the_feeds_batches(tokens: lowtide.Tokens) -> None:
    plain = feed_of(tokens)
    for step, (x, y) in zip(range(50), tensors(feed_of(tokens)), strict=False):
        assert x.dtype == y.dtype == torch.int64
        assert x.is_contiguous()
        assert y.is_contiguous()
        assert np.array_equal(x.numpy(), plain[step][0])
        assert np.array_equal(y.numpy(), plain[step][1])


def test_a_tensor_is_the_buffer_that_was_read_into_and_holds_it(tokens: lowtide.Tokens) -> None:
    batches = tensors(feed_of(tokens))
    x, y = next(batches)
    pool = tokens.store.pool
    (lease,) = pool._out.values()
    root = lease()
    assert root is not None
    first = root.ctypes.data
    assert x.data_ptr() == first
    assert y.data_ptr() == first + len(root) // 2
    assert x.data_ptr() % 4096 == 0
    assert pool.lent == 1
    del lease, root, y
    part = x[3:, 2]
    del x
    gc.collect()
    assert pool.lent == 1  # a view of one tensor is enough
    assert part.tolist() == feed_of(tokens)[0][0][3:, 2].tolist()
    del part
    gc.collect()
    assert pool.lent == 0


def test_a_held_tensor_never_changes(tokens: lowtide.Tokens) -> None:
    batches = tensors(feed_of(tokens))
    held = [next(batches) for _ in range(20)]
    copies = [(x.clone(), y.clone()) for x, y in held]
    del held[::2]
    for _ in range(200):
        next(batches)
    for (x, y), (x_then, y_then) in zip(held, copies[1::2], strict=True):
        assert torch.equal(x, x_then)
        assert torch.equal(y, y_then)


@pytest.mark.parametrize("shipped", ["uint16", "int32", "int64"])
@pytest.mark.parametrize("wanted", [torch.int64, torch.int32, None])
def test_few_bytes_are_shipped_and_widened_on_the_device(tokens: lowtide.Tokens, shipped: str, wanted: Any) -> None:
    x, y = next(tensors(feed_of(tokens, dtype=shipped), dtype=wanted))
    assert x.dtype == y.dtype == (wanted or getattr(torch, shipped))
    expected = feed_of(tokens)[0]
    assert np.array_equal(x.to(torch.int64).numpy(), expected[0])
    assert np.array_equal(y.to(torch.int64).numpy(), expected[1])


def test_ids_above_32767_stay_what_they_are_when_shipped_as_uint16(tmp_path: Path) -> None:
    with lowtide.open_tokens(raw_file(tmp_path, np.arange(65_000, 65_536)), dtype="uint16") as tokens:
        _, y = next(tensors(tokens.batches(1, length=535, order="sequential", dtype="uint16"), dtype=torch.int64))
        assert y[0].tolist() == list(range(65_001, 65_536))


def test_a_device_that_is_neither_cpu_nor_cuda_gets_a_copy(tokens: lowtide.Tokens) -> None:
    x, y = next(tensors(feed_of(tokens), device="meta", dtype=torch.int32))
    assert (x.device.type, x.dtype, tuple(y.shape)) == ("meta", torch.int32, (BATCH, LENGTH))
    gc.collect()
    assert tokens.store.pool.lent == 0


@pytest.mark.parametrize("device", ["", "gpu", "cpu:x"])
def test_a_device_that_torch_does_not_know_is_refused_by_name(tokens: lowtide.Tokens, device: str) -> None:
    with pytest.raises(ValueError, match=f"device: expected cpu, cuda or cuda:N, say, got '{device}'"):
        tensors(feed_of(tokens), device=device)


@pytest.mark.parametrize("dtype", ["int32", np.int32, np.dtype("int32"), (torch.int32, "int32"), 5])
def test_a_dtype_of_somebody_else_is_refused_by_name(tokens: lowtide.Tokens, dtype: Any) -> None:
    with pytest.raises(TypeError, match="dtype: expected a dtype of torch, got"):
        tensors(feed_of(tokens), dtype=dtype)


@pytest.mark.skipif(torch.cuda.is_available(), reason="NOT TESTED: this machine has CUDA, so its absence is not seen")
def test_cuda_where_there_is_none_is_refused_and_the_feed_stays_usable(tokens: lowtide.Tokens) -> None:
    feed = feed_of(tokens)
    with pytest.raises(
        ValueError,
        match=r"device: expected one that this machine has, got cuda:1, and there is no CUDA here. Use device='cpu'",
    ):
        tensors(feed, device="cuda:1")
    next(tensors(feed))


@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="NOT TESTED: no CUDA device, so pinned buffers, asynchronous copies and their events never ran",
)
def test_batches_reach_cuda_unharmed_while_buffers_are_reused(tokens: lowtide.Tokens) -> None:
    plain = feed_of(tokens)
    batches = tensors(feed_of(tokens, dtype="uint16"), device="cuda", dtype=torch.int64)
    received = [next(batches) for _ in range(200)]
    for step, (x, y) in enumerate(received):
        assert x.device.type == "cuda"
        assert np.array_equal(x.cpu().numpy(), plain[step][0])
        assert np.array_equal(y.cpu().numpy(), plain[step][1])


# State


def test_seek_and_state_count_what_was_received(tokens: lowtide.Tokens) -> None:
    plain = feed_of(tokens)
    batches = tensors(feed_of(tokens))
    assert batches.state_dict()["rows"] == 0
    for _ in range(3):
        next(batches)
    state = json.loads(json.dumps(batches.state_dict()))
    assert state["rows"] == 3 * BATCH
    assert state == {**plain.state_dict(), "rows": 3 * BATCH}
    next(batches)
    again = tensors(feed_of(tokens))
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert np.array_equal(next(again)[0].numpy(), plain[3][0])
    again.seek(30)
    assert again.state_dict()["rows"] == 30 * BATCH
    assert np.array_equal(next(again)[0].numpy(), plain[30][0])
    with pytest.raises(lowtide.StateError):
        again.load_state_dict({**state, "seed": 5})
    assert again.state_dict()["rows"] == 31 * BATCH


def test_a_batch_that_could_not_be_shipped_was_not_received_and_comes_again(tokens: lowtide.Tokens) -> None:
    feed = feed_of(tokens)
    batches = tensors(feed, dtype=torch.quint8)  # torch makes no quantised numbers of plain ones
    for _ in range(2):
        with pytest.raises((RuntimeError, NotImplementedError)):
            next(batches)
    assert batches.state_dict()["rows"] == feed.cursor == 0


def test_a_sequential_feed_of_tensors_ends(tokens: lowtide.Tokens) -> None:
    received = [y.reshape(-1).clone() for _, y in tensors(feed_of(tokens, order="sequential"))]
    assert torch.equal(torch.cat(received), torch.from_numpy(IDS[1:]))


# Several ranks

RANK = """
import json, sys
import numpy, torch, lowtide
from lowtide.torch import FeedDataset, tensors
rank, meeting, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.distributed.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2)
tokens = lowtide.open_tokens(path, dtype="uint16")
plain = tokens.batches(12, length=40, seed=4)
answers = []
for use in (tensors, FeedDataset):
    try:
        use(plain)
    except ValueError as problem:
        answers.append(str(problem))
feed = tokens.batches(12, length=40, seed=4, rank=rank, world=2)
FeedDataset(feed)
batches = tensors(feed)
for step in range(5):
    x, y = next(batches)
    both = [torch.empty_like(x) for _ in range(2)]
    torch.distributed.all_gather(both, x)
    assert torch.equal(torch.cat(both), torch.from_numpy(plain[step][0])), step
    answers.append(len(x))
tensors(tokens.batches(12, length=40, rank=0, world=1))  # said on purpose: ranks that share one model's rows
print(json.dumps(answers))
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_in_a_real_group_a_feed_without_ranks_is_refused_and_one_with_ranks_gives_each_its_rows(
    path: Path, tmp_path: Path
) -> None:
    source = str(Path(lowtide.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "meeting"), str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    for rank, process in enumerate(ranks):
        out, problem = process.communicate(timeout=500)
        assert process.returncode == 0, problem[-3000:]
        by_tensors, by_dataset, *sizes = json.loads(out.splitlines()[-1])
        assert by_tensors == by_dataset
        assert "expected one with rank= and world=2, got one without" in by_tensors
        assert f"Use batches(..., rank={rank}, world=2)" in by_tensors
        assert sizes == [6] * 5


def test_one_process_without_a_group_needs_no_ranks(tokens: lowtide.Tokens) -> None:
    assert not torch.distributed.is_initialized()
    next(tensors(feed_of(tokens)))
    FeedDataset(feed_of(tokens))
