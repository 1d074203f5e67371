"""Loaders of training corpora, each in its own format and used as its documentation says."""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.ledger import BATCH, LENGTH, ROW, rows_of
from benchmarks.peers.loader import SEED, Batch, Peer, pair, tensor_pair


class Litdata(Peer):
    title, version_of, source, stride = "litdata", "litdata", "litdata", ROW
    packages, without_dependencies = ("lightning-utilities",), ("litdata",)
    shuffles = "chunks, then inside one"
    code = "StreamingDataLoader(StreamingDataset(dir, item_loader=TokensLoader(1025), shuffle=True), batch_size=64)"
    notes = "Chunks of 64 MB, its default; blocks of 1,025 tokens, which do not overlap."

    def imports(self) -> None:
        if self.world > 1:
            os.environ.update(WORLD_SIZE=str(self.world), GLOBAL_RANK=str(self.rank), NNODES="1")
        self.litdata = importlib.import_module("litdata")
        self.torch = importlib.import_module("torch")

    def convert(self, tokens: Path) -> None:
        self.litdata.optimize(
            fn=_TokenPieces(tokens),
            inputs=list(range(-(-tokens.stat().st_size // _TokenPieces.BYTES))),
            output_dir=str(self.place),
            chunk_bytes="64MB" if tokens.stat().st_size > 1 << 28 else "4MB",
            item_loader=self.litdata.TokensLoader(block_size=ROW),
            num_workers=1,
        )

    def batches(self) -> Iterator[Batch]:
        loader = self.litdata.TokensLoader(block_size=ROW)
        dataset = self.litdata.StreamingDataset(
            str(self.place), item_loader=loader, shuffle=True, drop_last=True, seed=SEED
        )
        self.opened = self.litdata.StreamingDataLoader(dataset, batch_size=self.batch, num_workers=0)
        if self.given is not None:
            self.opened.load_state_dict(self.given)
        for got in self.opened:
            yield tensor_pair(got)

    def state(self) -> Any:
        return self.opened.state_dict()


class _TokenPieces:
    BYTES = 4 * ROW * 1024 * 2

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, number: int) -> Iterator[Any]:
        torch = importlib.import_module("torch")
        at = number * self.BYTES // 2
        yield torch.from_numpy(np.array(np.memmap(self.path, np.uint16, "r")[at : at + self.BYTES // 2]))


class Mosaic(Peer):
    title, version_of, source = "Mosaic Streaming", "mosaicml-streaming", "mosaic"
    packages = ("Brotli", "python-snappy", "zstd", "regex", "catalogue", "transformers")
    without_dependencies = ("mosaicml-streaming",)
    shuffles = "in blocks of 2^18 rows"
    code = 'StreamingDataLoader(StreamingDataset(local=dir, shuffle=True, shuffle_algo="py1e", ...), batch_size=64)'
    notes = (
        "Installed without its version limits on NumPy and other packages. Its vision part, not used here, gets a "
        "stand-in for torchvision."
    )

    def imports(self) -> None:
        os.environ.update(RANK=str(self.rank), WORLD_SIZE=str(self.world), LOCAL_RANK=str(self.rank))
        os.environ.update(LOCAL_WORLD_SIZE=str(self.world), MASTER_ADDR="127.0.0.1", MASTER_PORT="29641")
        self.torch = importlib.import_module("torch")
        importlib.import_module("transformers")
        for name in (
            "torchvision",
            "torchvision.transforms",
            "torchvision.transforms.functional",
            "torchvision.datasets",
        ):
            sys.modules[name] = types.ModuleType(name)
        sys.modules["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]
        sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]
        self.streaming = importlib.import_module("streaming")

    def convert(self, tokens: Path) -> None:
        with self.streaming.MDSWriter(out=str(self.place), columns={"row": f"ndarray:uint16:{ROW}"}) as out:
            for row in rows_of(tokens):
                out.write({"row": np.ascontiguousarray(row)})

    def batches(self) -> Iterator[Batch]:
        dataset = self.streaming.StreamingDataset(
            local=str(self.place),
            shuffle=True,
            shuffle_algo="py1e",
            shuffle_seed=SEED,
            batch_size=self.batch,
            num_canonical_nodes=1,
        )
        self.rows = dataset.num_samples
        self.opened = self.streaming.StreamingDataLoader(
            dataset, batch_size=self.batch, num_workers=0, collate_fn=_stacked
        )
        if self.given is not None:
            self.opened.load_state_dict(self.given)
        for got in self.opened:
            yield pair(got["row"])

    def state(self) -> Any:
        return self.opened.state_dict()

    def index_bytes(self) -> int:
        return int(self.rows) * 8


def _stacked(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"row": np.stack([row["row"] for row in rows])}


class HuggingFace(Peer):
    title, version_of, source = "HF datasets", "datasets", "hf"
    resumes = "by hand"
    code = 'Dataset.from_file(path).shuffle(seed=7).with_format("numpy").iter(batch_size=64)'
    notes = "An Arrow table of rows of fixed length. Resumed by `skip(rows)`, divided among ranks by `shard()`."

    def imports(self) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        self.datasets = importlib.import_module("datasets")
        self.datasets.disable_progress_bars()

    def convert(self, tokens: Path) -> None:
        pa = importlib.import_module("pyarrow")
        features = self.datasets.Features({"row": self.datasets.List(self.datasets.Value("uint16"), length=ROW)})
        rows, step = rows_of(tokens), 4096
        schema = features.arrow_schema
        part = self.place / "part.arrow"
        with pa.OSFile(str(part), "wb") as file, pa.ipc.new_stream(file, schema) as out:
            for at in range(0, len(rows), step):
                flat = pa.array(np.ascontiguousarray(rows[at : at + step]).ravel())
                out.write_batch(pa.record_batch([pa.FixedSizeListArray.from_arrays(flat, ROW)], schema=schema))

    def batches(self) -> Iterator[Batch]:
        data = self.datasets.Dataset.from_file(str(self.place / "part.arrow")).shuffle(seed=SEED, keep_in_memory=True)
        self.rows = len(data)
        data = data.skip(self.taken) if self.taken else data
        if self.world > 1:
            data = data.shard(num_shards=self.world, index=self.rank, contiguous=False)
        for got in data.with_format("numpy").iter(batch_size=self.batch, drop_last_batch=True):
            self.taken += BATCH
            yield pair(got["row"])

    def index_bytes(self) -> int:
        return self.rows * 8


class Grain(Peer):
    title, packages, version_of, source = "Grain", ("grain", "array_record"), "grain", "grain"
    code = "MapDataset.source(ArrayRecordDataSource(path)).seed(7).shuffle().map(decode).batch(64).to_iter_dataset()"
    notes = "ArrayRecord in groups of one row, uncompressed, 4,096 rows to a file: one large file was 20 times slower."

    def imports(self) -> None:
        self.grain = importlib.import_module("grain")
        self.records = importlib.import_module("array_record.python.array_record_module")

    def convert(self, tokens: Path) -> None:
        rows = rows_of(tokens)
        for shard, at in enumerate(range(0, len(rows), 4096)):
            path = self.place / f"rows-{shard:05d}.array_record"
            out = self.records.ArrayRecordWriter(str(path), "group_size:1,uncompressed")
            for row in rows[at : at + 4096]:
                out.write(row.tobytes())
            out.close()

    def batches(self) -> Iterator[Batch]:
        grain = self.grain
        source = grain.sources.ArrayRecordDataSource(sorted(str(path) for path in self.place.glob("*.array_record")))
        data = grain.MapDataset.source(source).seed(SEED).shuffle()[self.rank :: self.world]
        data = data.map(_decoded).batch(self.batch, drop_remainder=True)
        self.opened = iter(data.to_iter_dataset(grain.ReadOptions(num_threads=16, prefetch_buffer_size=16)))
        if self.given is not None:
            self.opened.set_state(self.given)
        for got in self.opened:
            yield pair(got)

    def state(self) -> Any:
        return self.opened.get_state()


def _decoded(record: bytes) -> Any:
    return np.frombuffer(record, np.uint16)


class Megatron(Peer):
    title, packages, version_of, source = "Megatron-core", ("megatron-core",), "megatron-core", "megatron"
    code = "DataLoader(GPTDataset(...), batch_sampler=MegatronPretrainingSampler(consumed_samples=...))"
    notes = "Its sampler is not in the package: one that counts consumed samples in the same way stands in for it."

    def imports(self) -> None:
        importlib.import_module("warnings").simplefilter("ignore")
        self.torch = importlib.import_module("torch")
        self.gpt = importlib.import_module("megatron.core.datasets.gpt_dataset")
        self.indexed = importlib.import_module("megatron.core.datasets.indexed_dataset")
        self.splits = importlib.import_module("megatron.core.datasets.utils").Split

    def convert(self, tokens: Path) -> None:
        out = self.indexed.IndexedDatasetBuilder(str(self.place / "tokens.bin"), dtype=np.uint16)
        stream = np.fromfile(tokens, np.uint16)  # one document: windows across two would not be pieces of the stream
        out.add_document(self.torch.from_numpy(stream), [len(stream)])
        out.finalize(str(self.place / "tokens.idx"))

    def batches(self) -> Iterator[Batch]:
        gpt = self.gpt
        config = gpt.GPTDatasetConfig(
            random_seed=SEED,
            sequence_length=LENGTH,
            split="1",
            path_to_cache=str(self.scratch),
            tokenizer=types.SimpleNamespace(vocab_size=1 << 16, eod=-1, pad=-1, unique_identifiers={}),
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
        )
        low = gpt.GPTDataset.build_low_level_dataset(str(self.place / "tokens"), config)
        documents = np.arange(len(low.document_indices) - 1, dtype=np.int32)
        self.data = gpt.GPTDataset(low, str(self.place / "tokens"), documents, None, self.splits.train, config)
        loader = self.torch.utils.data.DataLoader(self.data, batch_sampler=list(self.consumed()), num_workers=0)
        for got in loader:
            self.taken += BATCH
            yield got["tokens"], got["labels"]

    def consumed(self) -> Iterator[range]:
        for at in range(self.taken, len(self.data) // BATCH * BATCH, BATCH):
            yield range(at + self.rank * self.batch, at + (self.rank + 1) * self.batch)

    def index_bytes(self) -> int:
        indices = (self.data.document_index, self.data.sample_index, self.data.shuffle_index)
        return sum(int(index.nbytes) for index in indices)


class Olmo(Peer):
    title, version_of, stride = "OLMo-core", "ai2-olmo-core", ROW
    packages = ("dataclass-extensions", "importlib_resources", "bettermap", "google-cloud-storage")
    without_dependencies = ("ai2-olmo-core", "cached-path")
    code = "NumpyDataLoaderConfig(global_batch_size=64 * 1025, num_threads=4).build(NumpyFSLDatasetConfig(...).build())"
    notes = (
        "Reads the raw file, in blocks of 1,025 tokens, which do not overlap: its labels are cut from the same block."
    )

    def imports(self) -> None:
        self.data = importlib.import_module("olmo_core.data")
        self.loaders = importlib.import_module("olmo_core.data.data_loader")

    def batches(self) -> Iterator[Batch]:
        data = self.data
        tokenizer = data.TokenizerConfig(vocab_size=1 << 16, eos_token_id=65535, pad_token_id=65535)
        work = self.scratch
        config = data.NumpyFSLDatasetConfig(
            paths=[str(self.tokens)],
            sequence_length=ROW,
            tokenizer=tokenizer,
            dtype=data.NumpyDatasetDType.uint16,
            work_dir=str(work),
        )
        dataset = config.build()
        dataset.prepare()
        self.opened = self.loaders.NumpyDataLoaderBase.wrap_numpy_dataset(
            dataset,
            global_batch_size=BATCH * ROW,
            collator=data.DataCollator(pad_token_id=65535),
            work_dir=work,
            seed=SEED,
            dp_world_size=self.world,
            dp_rank=self.rank,
            fs_local_rank=0,
            num_threads=4,
        )
        if self.given is not None:
            self.opened.load_state_dict(self.given)
        self.opened.reshuffle(epoch=1)
        for got in self.opened:
            yield tensor_pair(got["input_ids"])

    def state(self) -> Any:
        return self.opened.state_dict()

    def index_bytes(self) -> int:
        return int(self.opened.get_global_indices().nbytes)


class Datatrove(Peer):
    title, version_of, source, stride = "datatrove", "datatrove", "datatrove", ROW
    resumes = "by hand"
    code = "DataLoader(DatatroveFolderDataset(dir, seq_len=1024), batch_sampler=...)"
    notes = "It leaves the order to the sampler: a permutation, as in nanotron."

    def imports(self) -> None:
        self.torch = importlib.import_module("torch")
        self.dataset = importlib.import_module("datatrove.utils.dataset")

    def convert(self, tokens: Path) -> None:
        os.link(tokens, self.place / "tokens.ds")

    def batches(self) -> Iterator[Batch]:
        data = self.dataset.DatatroveFolderDataset(str(self.place), seq_len=LENGTH, filename_pattern="*.ds")
        self.order = np.random.default_rng(SEED).permutation(len(data))
        loader = self.torch.utils.data.DataLoader(data, batch_sampler=list(self.left()))
        for got in loader:
            self.taken += BATCH
            yield tensor_pair(got["input_ids"])

    def left(self) -> Iterator[list[int]]:
        for at in range(self.taken, len(self.order) // BATCH * BATCH, BATCH):
            yield self.order[at + self.rank * self.batch : at + (self.rank + 1) * self.batch].tolist()

    def index_bytes(self) -> int:
        return int(self.order.nbytes)


class WebDataset(Peer):
    title, packages, version_of, source = "webdataset", ("webdataset",), "webdataset", "webdataset"
    shuffles, resumes = "shards, then a buffer of 5,000 rows", "-"
    code = "wds.WebDataset(shards, shardshuffle=100).shuffle(5000).map(decode).batched(64, collation_fn=np.stack)"

    def imports(self) -> None:
        self.wds = importlib.import_module("webdataset")

    def convert(self, tokens: Path) -> None:
        rows = rows_of(tokens)
        with self.wds.ShardWriter(
            str(self.place / "rows-%06d.tar"), maxcount=max(1024, len(rows) // 64), verbose=0
        ) as out:
            for number, row in enumerate(rows):
                out.write({"__key__": f"{number:09d}", "bin": row.tobytes()})

    def batches(self) -> Iterator[Batch]:
        shards = sorted(str(path) for path in self.place.glob("*.tar"))
        data = self.wds.WebDataset(shards, shardshuffle=100, seed=SEED, nodesplitter=None, empty_check=False)
        for got in data.shuffle(5000).map(_bytes_of).batched(self.batch, partial=True, collation_fn=np.stack):
            yield pair(got)


def _bytes_of(sample: dict[str, Any]) -> Any:
    return np.frombuffer(sample["bin"], np.uint16)


class Lance(Peer):
    title, packages, version_of, source = "LanceDB (Lance)", ("lancedb", "pylance"), "pylance", "lance"
    resumes = "by hand"
    code = "lance.dataset(path).take(rows)"
    notes = "A column of lists of fixed length; the order is a permutation that the user makes."

    def imports(self) -> None:
        self.lance = importlib.import_module("lance")
        self.pa = importlib.import_module("pyarrow")

    def convert(self, tokens: Path) -> None:
        rows, step, pa = rows_of(tokens), 4096, self.pa
        schema = pa.schema([("row", pa.list_(pa.uint16(), ROW))])
        flat = (pa.array(np.ascontiguousarray(rows[at : at + step]).ravel()) for at in range(0, len(rows), step))
        made = (pa.record_batch([pa.FixedSizeListArray.from_arrays(each, ROW)], schema=schema) for each in flat)
        self.lance.write_dataset(made, str(self.place / "rows.lance"), schema=schema)

    def batches(self) -> Iterator[Batch]:
        data = self.lance.dataset(str(self.place / "rows.lance"))
        self.order = np.random.default_rng(SEED).permutation(data.count_rows())
        for at in range(self.taken, len(self.order) // BATCH * BATCH, BATCH):
            self.taken = at + BATCH
            rows = self.order[at + self.rank * self.batch : at + (self.rank + 1) * self.batch]
            column = data.take(rows).column("row").combine_chunks()
            yield pair(column.flatten().to_numpy().reshape(-1, ROW))

    def index_bytes(self) -> int:
        return int(self.order.nbytes)


CORPORA: list[type[Peer]] = [Litdata, Mosaic, HuggingFace, Grain, Megatron, Olmo, Datatrove, WebDataset, Lance]
