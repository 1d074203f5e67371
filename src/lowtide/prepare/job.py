"""``prepare``: the whole job, from names of files to a corpus with its manifest.

Plan, go on from where the journal stopped, write the manifest last. Until then the output directory holds
finished shards and the work directory; after it, the corpus alone. Whatever happens in between - kill, full disk, lost
node - the same command goes on, and the bytes are those of one that was never stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from lowtide.corpus.conversion import write_foreign
from lowtide.corpus.finding import corpora_in, stated_manifest
from lowtide.corpus.journal import Journal, refuse_other_files
from lowtide.corpus.request import Request
from lowtide.corpus.shards import ShardWriter
from lowtide.errors import FormatError, StateError
from lowtide.formats.tokens.manifest import MANIFEST
from lowtide.prepare.assemble import Assembler
from lowtide.prepare.cluster import encoded_by_ray
from lowtide.prepare.encoding import EncodedBlock, Recipe
from lowtide.prepare.inputs.listing import STDIN, Input, copy_stdin, inputs_digest, list_inputs
from lowtide.prepare.inputs.sampling import compared_texts, sample_texts
from lowtide.prepare.inputs.sections import sections_of
from lowtide.prepare.processes import encoded_by_processes, encoded_here
from lowtide.prepare.resources import Resources
from lowtide.prepare.tokenizers.bpe import SAMPLE, trained
from lowtide.prepare.tokenizers.encoders import CACHE, Choice, choose_encoder
from lowtide.prepare.tokenizers.vocabulary import Vocabulary, from_json, load_vocabulary
from lowtide.storage.own_files import atomic_write

_OUTSIDE = ("tokenizer", "format")  # settings the manifest records elsewhere, or not at all


@dataclass(frozen=True)
class Status:
    """How far it is."""

    stage: str  # "tokenizer", "encoding", "writing"
    done: int = 0  # bytes of input
    total: int = 0
    tokens: int = 0
    documents: int = 0
    shards: int = 0


@dataclass(frozen=True)
class Prepared:
    """What came out."""

    output: str
    tokens: int
    documents: int
    shards: int
    dtype: str
    vocab: int
    tally: dict[str, int]
    encoder: str
    notes: tuple[str, ...]
    seconds: float
    input_bytes: int
    went_on: bool  # from where an earlier try stopped
    was_complete: bool = False  # nothing was left to do


def prepare(
    inputs: Sequence[str],
    output: str | Path,
    request: Request | None = None,
    resources: Resources | None = None,
    progress: Callable[[Status], None] = lambda _: None,
) -> Prepared:
    """Make a token corpus in ``output`` from files, globs, directories or standard input ('-').

    Killed at any moment, the same call goes on where it stopped. ``progress`` is told how far it is.
    """
    request, resources = request or Request(), resources or Resources()
    target = Path(output)
    begun = time.monotonic()
    refused = _refusal(target)
    if refused is not None and not _is_finished(target):
        raise refused
    stdin = STDIN in inputs
    listed = [] if stdin else list_inputs(inputs, request)
    vocabulary = None if request.train_bpe else load_vocabulary(request.tokenizer, request.eot)
    if _is_finished(target):
        return _complete(target, request, listed, vocabulary)
    journal = Journal(target)
    with journal.held():
        if stdin:
            spool = journal.path / "stdin"
            if not spool.exists():
                copy_stdin(spool)
            listed = list_inputs(inputs, request, spool)
        job = _Job(journal, request, resources, listed, progress)
        return job.finish(vocabulary, begun)


class _Job:
    """One job under its lock."""

    def __init__(
        self,
        journal: Journal,
        request: Request,
        resources: Resources,
        inputs: list[Input],
        progress: Callable[[Status], None],
    ) -> None:
        self._journal, self._request, self._resources = journal, request, resources
        self._inputs, self._progress = inputs, progress
        self._total = sum(one.size for one in inputs)

    def finish(self, vocabulary: Vocabulary | None, begun: float) -> Prepared:
        went_on = self._journal.read("journal.json") is not None
        fingerprint = vocabulary.fingerprint if vocabulary is not None else ""
        planned = [(one.path, one.size, one.modified) for one in self._inputs]
        self._journal.agree(self._request, planned, tokenizer=fingerprint)
        if vocabulary is None:
            vocabulary = self._trained()
        choice = self._chosen(vocabulary)
        recipe = Recipe(self._request, vocabulary, choice.name, self._cache())
        foreign = self._request.format != "lowtide"
        target = self._journal.path / "corpus" if foreign else self._journal.output
        assembler = Assembler(self._journal, recipe, target, self._resources.seen_bytes)
        try:
            self._encode(assembler, recipe)
        finally:
            assembler.close()
        self._progress(replace(self._status(assembler), stage="writing"))
        self._write_manifests(assembler, vocabulary, choice)
        if foreign:
            write_foreign(target, self._journal, self._request.format, self._request.shard_tokens)
        self._journal.remove()
        return Prepared(
            str(self._journal.output),
            assembler.tokens,
            sum(writer.documents for writer in assembler.writers),
            assembler.shards,
            vocabulary.dtype,
            vocabulary.size,
            assembler.tally.as_dict(),
            choice.told,
            choice.notes,
            time.monotonic() - begun,
            self._total,
            went_on,
        )

    def _encode(self, assembler: Assembler, recipe: Recipe) -> None:
        self._progress(self._status(assembler))
        blocks = self._blocks(assembler, recipe)
        for block in blocks:
            assembler.take(block)
            self._progress(self._status(assembler))
        assembler.end()
        if assembler.tokens == 0:
            raise FormatError(
                f"{self._inputs[0].path}: expected text, got none in {len(self._inputs)} files of {self._total} bytes. "
                "Name files that hold text."
            )
        for writer in assembler.writers:
            if writer.tokens == 0:
                raise FormatError(
                    f"{writer.directory}: expected documents for this part, got none of {assembler.tally.documents}. "
                    "Use a larger --val, or leave it out, in an empty directory."
                )

    def _blocks(self, assembler: Assembler, recipe: Recipe) -> Iterator[EncodedBlock]:
        sections = islice(sections_of(self._inputs, self._request), assembler.section, None)
        skip, workers = assembler.block, self._resources.worker_count
        if self._resources.engine == "ray":
            return encoded_by_ray(sections, recipe, skip, self._resources.address, self._resources.workers)
        if recipe.encoder == "bytes":
            return encoded_here(sections, recipe, skip)
        held = max(16 << 20, self._resources.budget_bytes // 4)
        return encoded_by_processes(sections, recipe, skip, workers, held)

    def _cache(self) -> int:
        """Bytes of tokenizer cache per worker: a quarter of the budget among them, and no more than is of use."""
        return min(CACHE, self._resources.budget_bytes // 4 // self._resources.worker_count)

    def _status(self, assembler: Assembler) -> Status:
        documents = sum(writer.documents for writer in assembler.writers)
        return Status("encoding", assembler.done, self._total, assembler.tokens, documents, assembler.shards)

    def _trained(self) -> Vocabulary:
        """The tokenizer this job trains, or trained before it was stopped."""
        place = self._journal.path / "tokenizer.json"
        if not place.exists():
            self._progress(Status("tokenizer"))
            texts = sample_texts(self._inputs, self._request, SAMPLE)
            text, trainer = trained(texts, self._request.train_bpe, self._journal.path)
            self._journal.write("trainer.json", {"trainer": trainer})
            with atomic_write(place) as file:
                file.write(text.encode())
        return from_json(str(place), place.read_text(encoding="utf-8"), self._request.eot)

    def _chosen(self, vocabulary: Vocabulary) -> Choice:
        """Which library encodes: settled once for a job."""
        before = self._journal.read("encoder.json")
        if before is not None:
            return Choice(before["name"], before["version"], tuple(before["notes"]))
        self._progress(Status("tokenizer"))
        sample = [] if vocabulary.kind in ("bytes", "model") else compared_texts(self._inputs, self._request)
        choice = choose_encoder(vocabulary, sample, self._resources.tokenizer_engine)
        self._journal.write("encoder.json", vars(choice))
        return choice

    def _write_manifests(self, assembler: Assembler, vocabulary: Vocabulary, choice: Choice) -> None:
        """Tokenizer beside the shards, then the manifest: with it a corpus is whole."""
        trainer = self._journal.read("trainer.json")
        told = vocabulary.describe() | ({"trained_by": trainer["trainer"]} if trainer else {})
        for writer in assembler.writers:
            _keep_tokenizer(writer.directory, vocabulary)
            content = {
                "lowtide": 1,
                "dtype": vocabulary.dtype,
                "vocab": vocabulary.size,
                "eot": vocabulary.eot,
                "tokens": writer.tokens,
                "documents": writer.documents,
                "shards": [shard.as_dict() for shard in writer.shards],
                "tokenizer": told,
                "encoder": choice.told,
                "provenance": _provenance(self._request, self._inputs, assembler, writer),
            }
            with atomic_write(writer.directory / MANIFEST) as file:
                file.write(json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n")


def _provenance(request: Request, inputs: Sequence[Input], assembler: Assembler, writer: ShardWriter) -> dict[str, Any]:
    """Where a corpus came from: no paths and no times, so that equal input gives equal bytes anywhere."""
    settings = {name: value for name, value in vars(request).items() if name not in _OUTSIDE}
    total = sum(one.size for one in inputs)
    part = {"part": writer.directory.name} if request.val else {}
    return {
        **part,
        "settings": settings,
        "inputs": {"files": len(inputs), "bytes": total, "sha256": inputs_digest(inputs)},
        "met": assembler.tally.as_dict(),
    }


def _keep_tokenizer(directory: Path, vocabulary: Vocabulary) -> None:
    if vocabulary.file:
        with atomic_write(directory / vocabulary.file) as file:
            file.write(vocabulary.content)


def _refusal(target: Path) -> StateError | None:
    try:
        refuse_other_files(target)
    except StateError as problem:
        return problem
    return None


def _finished_manifests(target: Path) -> list[dict[str, Any]]:
    """Of a corpus, or of its parts."""
    found = [stated_manifest(place) for place in corpora_in(target)]
    return [content for content in found if isinstance(content.get("provenance"), dict)]


def _is_finished(target: Path) -> bool:
    """Whether a corpus is there and nobody is still at work in it."""
    return bool(_finished_manifests(target)) and not Journal(target).path.exists()


def _complete(target: Path, request: Request, inputs: list[Input], vocabulary: Vocabulary | None) -> Prepared:
    """A finished corpus: fine when it is the one that was asked for, refused by name when not."""
    parts = _finished_manifests(target)
    content = parts[0]
    told = content["provenance"]
    settings = {name: value for name, value in vars(request).items() if name not in _OUTSIDE}
    advice = "Name another directory with -o"
    for name, value in settings.items():
        if told["settings"].get(name) != value:
            was = told["settings"].get(name)
            raise StateError(f"{target}: expected {name} {was!r} as its corpus has, got {value!r}. {advice}.")
    if inputs and told["inputs"]["sha256"] != inputs_digest(inputs):
        size = sum(one.size for one in inputs)
        raise StateError(
            f"{target}: expected the {told['inputs']['files']} files of {told['inputs']['bytes']} bytes its corpus was "
            f"made from, got {len(inputs)} of {size} bytes, or other names. {advice}."
        )
    fingerprint = content["tokenizer"].get("sha256", "bytes")
    if vocabulary is not None and fingerprint != vocabulary.fingerprint:
        raise StateError(f"{target}: expected the tokenizer its corpus was made with, got another. {advice}.")
    return Prepared(
        str(target),
        sum(part["tokens"] for part in parts),
        sum(part["documents"] for part in parts),
        sum(len(part["shards"]) for part in parts),
        content["dtype"],
        content["vocab"],
        told["met"],
        content["encoder"],
        (),
        0.0,
        told["inputs"]["bytes"],
        went_on=False,
        was_complete=True,
    )
