"""Arrays, and loops over them: Lowtide, the bare C loop, NumPy, nanoGPT, torch, and the array libraries."""

from __future__ import annotations

import ctypes
import importlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.ledger import BATCH, LENGTH, ROW, rows_of
from benchmarks.peers.loader import SEED, Batch, ByHand, Peer, pair, tensor_pair


class Lowtide(Peer):
    title, version_of = 'Lowtide, `cache="keep"`', "lowtide"
    options: dict[str, str] = {"cache": "keep"}
    order: dict[str, str] = {}
    code = 'lowtide.open_tokens("tokens.bin", dtype="uint16", cache="keep").batches(64, length=1024, seed=7)'

    def imports(self) -> None:
        self.lowtide = importlib.import_module("lowtide")
        importlib.import_module("lowtide.tokens")  # else at the first call

    def batches(self) -> Iterator[Batch]:
        opened = self.lowtide.open_tokens(self.tokens, dtype="uint16", **self.options)
        self.feed = opened.batches(BATCH, length=LENGTH, seed=SEED, rank=self.rank, world=self.world, **self.order)
        if self.given is not None:
            self.feed.load_state_dict(self.given)
        yield from self.feed

    def state(self) -> Any:
        return self.feed.state_dict()

    def rows_of_epoch(self, tokens: int) -> int:
        return (tokens - LENGTH) // LENGTH  # at every phase as many; the ends wait for another epoch


class LowtideDrop(Lowtide):
    title = 'Lowtide, `cache="drop"`'
    options = {"cache": "drop"}
    code = 'lowtide.open_tokens("tokens.bin", dtype="uint16", cache="drop").batches(64, length=1024, seed=7)'
    notes = "Warm: the file was cached when the run began. The run drops what it reads, so a second epoch is cold."


class LowtideLocal(Lowtide):
    title, shuffles = 'Lowtide, `locality="64MiB"`', "blocks of 1 MiB from anywhere, 64 at a time"
    order = {"locality": "64MiB"}
    code = 'lowtide.open_tokens(..., cache="keep").batches(64, length=1024, seed=7, locality="64MiB")'


class LowtideMap(Lowtide):
    title = 'Lowtide, `strategy="map"`'
    options = {"strategy": "map"}
    code = 'lowtide.open_tokens("tokens.bin", dtype="uint16", strategy="map").batches(64, length=1024, seed=7)'


class BareC(ByHand):
    title = "the bare C loop"
    code = "bare_windows(fd, offsets, ...)   /* one pread and one widening loop per window: benchmarks/bare.c */"
    notes = (
        "Not a loader, but the limit of one thread that reads by `pread`: it checks only the number of bytes "
        "and reuses its buffers."
    )

    def imports(self) -> None:
        self.call = importlib.import_module("benchmarks.native_engine").bare().bare_windows

    def opened(self) -> None:
        self.fd = os.open(self.tokens, os.O_RDONLY)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)
        memory = mmap.mmap(-1, 2 * self.batch * LENGTH * 8)
        self.both = np.ndarray((2, self.batch, LENGTH), np.int64, memory)
        self.window = np.ndarray(4096, np.uint8, mmap.mmap(-1, 4096))

    def read(self, windows: NDArray[np.int64]) -> Batch:
        offsets = windows * (2 * LENGTH)
        sizes = [ctypes.c_int64(number) for number in (1, self.batch, LENGTH)]
        places = [ctypes.c_void_p(array.ctypes.data) for array in (self.both[0], self.both[1], self.window)]
        came = self.call(self.fd, ctypes.c_void_p(offsets.ctypes.data), *sizes, *places)
        if came != self.batch * ROW * 2:
            raise EOFError(f"{came} bytes came")
        return self.both[0], self.both[1]


class Memmap(ByHand):
    title, version_of = "np.memmap", "numpy"
    code = "rows = sliding_window_view(np.memmap(path, np.uint16, 'r'), 1025)[starts]"
    notes = "One gather per batch from a kept mapping: the fastest that NumPy alone can do."

    def opened(self) -> None:
        self.mapping = np.memmap(self.tokens, np.uint16, "r")
        self.view = np.lib.stride_tricks.sliding_window_view(self.mapping, ROW)

    def read(self, windows: NDArray[np.int64]) -> Batch:
        return pair(self.view[windows * LENGTH])


class MemmapRandom(Memmap):
    title = "np.memmap, `MADV_RANDOM`"
    code = "memmap._mmap.madvise(mmap.MADV_RANDOM)"
    notes = "Without read-ahead: faster cold; warm, every page costs a fault of its own until all are mapped."

    def opened(self) -> None:
        super().opened()
        self.mapping._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]


class NanoGPT(Peer):
    title, version_of = "nanoGPT's `get_batch`", "torch"
    shuffles, resumes, epoch = "draws with replacement", "-", False
    code = "x = torch.stack([torch.from_numpy(data[i:i+block_size].astype(np.int64)) for i in ix])"
    notes = "Its own loop, which recreates the memmap per batch. After a restart it draws the same windows again."

    def imports(self) -> None:
        self.torch = importlib.import_module("torch")

    def batches(self) -> Iterator[Batch]:
        torch = self.torch
        torch.manual_seed(1337 + self.rank)
        for _ in range((self.tokens.stat().st_size // 2 - 1) // LENGTH // self.batch):
            data = np.memmap(self.tokens, np.uint16, "r")
            at = torch.randint(len(data) - LENGTH, (self.batch,))
            x = torch.stack([torch.from_numpy(data[i : i + LENGTH].astype(np.int64)) for i in at])
            y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + LENGTH].astype(np.int64)) for i in at])
            yield x, y


class TorchLoader(Peer):
    title, version_of = "torch DataLoader", "torch"
    code = "StatefulDataLoader(rows, sampler=BatchSampler(RandomSampler(rows), 64, True), batch_size=None)"
    notes = (
        "A memmap of windows that gathers a whole batch of indices, as its documentation recommends for batch "
        "samplers; torchdata's StatefulDataLoader, because it is the one that has a state."
    )

    def imports(self) -> None:
        self.torch = importlib.import_module("torch")
        self.loader = importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader
        self.distributed = importlib.import_module("torch.utils.data.distributed").DistributedSampler

    def batches(self) -> Iterator[Batch]:
        data = self.torch.utils.data
        rows = _MappedWindows(self.tokens)
        generator = self.torch.Generator().manual_seed(SEED)
        if self.world > 1:
            sampler = self.distributed(rows, self.world, self.rank, shuffle=True, seed=SEED)
        else:
            sampler = data.RandomSampler(rows, generator=generator)
        self.held = sampler
        batches = data.BatchSampler(sampler, self.batch, drop_last=True)
        self.opened = self.loader(rows, sampler=batches, batch_size=None)
        if self.given is not None:
            self.opened.load_state_dict(self.given)
        for got in self.opened:
            yield tensor_pair(got)

    def state(self) -> Any:
        return self.opened.state_dict()

    def index_bytes(self) -> int:
        return 36 * len(self.held)  # randperm(n).tolist(): a pointer and an int object for each


class _MappedWindows:
    def __init__(self, path: Path) -> None:
        self.rows = rows_of(path)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: list[int]) -> Any:
        return self.rows[rows]


class MmapNinja(ByHand):
    title, packages, version_of, source = "mmap_ninja", ("mmap-ninja",), "mmap_ninja", "mmap_ninja"
    code = "mmap_ninja.numpy.open_existing(directory)[rows]"

    def imports(self) -> None:
        self.ninja = importlib.import_module("mmap_ninja.numpy")

    def convert(self, tokens: Path) -> None:
        self.ninja.from_ndarray(self.place / "rows", rows_of(tokens))

    def opened(self) -> None:
        self.rows = self.ninja.open_existing(self.place / "rows")

    def windows(self) -> int:
        return len(self.rows)

    def read(self, windows: NDArray[np.int64]) -> Batch:
        return pair(self.rows[windows])


class H5py(ByHand):
    title, version_of, source = "h5py", "h5py", "h5py"
    code = "rows[i] = dataset[start : start + 1025]"
    notes = "One contiguous dataset of tokens, one read per window."

    def imports(self) -> None:
        self.h5py = importlib.import_module("h5py")

    def convert(self, tokens: Path) -> None:
        with self.h5py.File(self.place / "tokens.h5", "w") as file:
            file.create_dataset("tokens", data=np.memmap(tokens, np.uint16, "r"))

    def opened(self) -> None:
        self.dataset = self.h5py.File(self.place / "tokens.h5", "r")["tokens"]
        self.rows = np.empty((self.batch, ROW), np.uint16)

    def windows(self) -> int:
        return (len(self.dataset) - 1) // LENGTH

    def read(self, windows: NDArray[np.int64]) -> Batch:
        for row, start in zip(self.rows, (windows * LENGTH).tolist(), strict=True):
            row[:] = self.dataset[start : start + ROW]
        return pair(self.rows)


class Zarr(ByHand):
    title, version_of, source = "zarr", "zarr", "zarr"
    code = "array.oindex[rows]"
    notes = "Rows in chunks of 16, uncompressed, one file per chunk: shards and larger chunks were slower."
    shards: tuple[int, int] | None = None

    def imports(self) -> None:
        self.zarr = importlib.import_module("zarr")

    def convert(self, tokens: Path) -> None:
        rows = rows_of(tokens)
        zarr = importlib.import_module("zarr")
        array = zarr.create_array(
            self.place / "rows.zarr",
            shape=rows.shape,
            dtype="uint16",
            chunks=(16, ROW),
            shards=self.shards,
            compressors=None,
        )
        for at in range(0, len(rows), 4096):  # whole shards
            array[at : at + 4096] = rows[at : at + 4096]

    def opened(self) -> None:
        self.array = self.zarr.open_array(self.place / "rows.zarr", mode="r")

    def windows(self) -> int:
        return int(self.array.shape[0])

    def read(self, windows: NDArray[np.int64]) -> Batch:
        return pair(self.array.oindex[windows])


class TensorStore(Zarr):
    title, packages, version_of, source = "tensorstore", ("tensorstore",), "tensorstore", "tensorstore"
    code = "store.oindex[rows].read().result()"
    notes = "The same array in shards of 4,096 rows, with a cache of 64 MiB for their indices."
    shards = (4096, ROW)

    def imports(self) -> None:
        self.ts = importlib.import_module("tensorstore")

    def opened(self) -> None:
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(self.place / "rows.zarr") + "/"}}
        context = self.ts.Context({"cache_pool": {"total_bytes_limit": 64 << 20}})
        self.store = self.ts.open(spec, read=True, context=context, recheck_cached=False).result()

    def windows(self) -> int:
        return int(self.store.shape[0])

    def read(self, windows: NDArray[np.int64]) -> Batch:
        return pair(self.store.oindex[windows].read().result())


ARRAYS: list[type[Peer]] = [
    Lowtide,
    LowtideDrop,
    LowtideLocal,
    LowtideMap,
    BareC,
    Memmap,
    MemmapRandom,
    NanoGPT,
    TorchLoader,
    MmapNinja,
    H5py,
    Zarr,
    TensorStore,
]
