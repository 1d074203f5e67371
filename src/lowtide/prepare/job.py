"""``prepare``: the whole job, from names of files to a corpus with its manifest.

Plan, continue where the journal stopped, write the manifest last. Until then the output directory holds finished
shards and the work directory; afterwards, only the corpus. Whatever happens in between - a kill, a full disk, a lost
node - the same command continues, and gives the same bytes as an uninterrupted run.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from lowtide.corpus.conversion import write_foreign
from lowtide.corpus.finding import corpora_in, stated_manifest
from lowtide.corpus.journal import WORK, Journal, refuse_other_files
from lowtide.corpus.request import Request
from lowtide.corpus.shards import ShardWriter, write_manifest
from lowtide.errors import FormatError, LowtideError, StateError
from lowtide.machine import memory_limit
from lowtide.prepare.assemble import Assembler
from lowtide.prepare.cluster import encoded_by_ray
from lowtide.prepare.encoding import EncodedBlock, Recipe
from lowtide.prepare.inputs.listing import STDIN, Input, copy_stdin, inputs_digest, left_out, list_inputs
from lowtide.prepare.inputs.sampling import sample_texts
from lowtide.prepare.inputs.sections import sections_of
from lowtide.prepare.processes import WorkerProcesses, encoded_here
from lowtide.prepare.resources import Resources, refuse_little_memory
from lowtide.prepare.tokenizers.bpe import LEAST_SAMPLE, SAMPLE, trained, training_memory
from lowtide.prepare.tokenizers.encoders import CACHE, Choice, choose_encoder, needed_memory
from lowtide.prepare.tokenizers.vocabulary import Vocabulary, from_json, load_vocabulary
from lowtide.storage.own_files import atomic_write
from lowtide.units import MIB, format_size

_FINISHED = "finished.json"  # in a work directory that only has to be removed


@dataclass(frozen=True)
class Status:
    """How far a job is."""

    stage: str  # "gathering" (this machine's own text), "tokenizer", "encoding", "writing"
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
    went_on: bool  # an earlier try had stopped halfway
    was_complete: bool = False  # nothing was left to do


def prepare(
    inputs: Sequence[str],
    output: str | Path,
    request: Request | None = None,
    resources: Resources | None = None,
    progress: Callable[[Status], None] = lambda _: None,
) -> Prepared:
    """Make a token corpus in ``output`` from files, globs, directories or standard input ('-').

    If it is killed, the same call continues where it stopped. ``progress`` is called with how far it is.
    """
    request, resources = request or Request(), resources or Resources()
    target, begun = Path(output), time.monotonic()
    work = target / WORK
    finished = [] if (work / "plan.json").exists() or (work / _FINISHED).exists() else _finished_manifests(target)
    if not finished:
        refuse_other_files(target)
    if request.train_bpe and find_spec("tokenizers") is None:
        raise LowtideError(
            f"--train-bpe {request.train_bpe}: expected the package tokenizers, got none. "
            "Install it with: pip install 'lowtide[prepare]'"
        )
    stdin = STDIN in inputs
    listed = [] if stdin else list_inputs(inputs, request)
    vocabulary = None if request.train_bpe else _loaded(request)
    if finished:
        _refuse_other_corpus(target, finished[0], request, listed, vocabulary)
        shutil.rmtree(work, ignore_errors=True)  # left by a run that was killed at its very end
        return _prepared(target, finished, (), 0.0, was_complete=True)
    journal = Journal(target)
    with journal.held():
        if stdin:
            spool = journal.path / "stdin"
            if not spool.exists():
                copy_stdin(spool)
            listed = list_inputs(inputs, request, spool)
        went_on = journal.read("journal.json") is not None
        before = journal.read(_FINISHED)
        if before is not None and journal.read("plan.json") is None:  # killed while it cleaned up
            manifests, notes = before["manifests"], tuple(before["notes"])
        else:
            _remove_temporaries(target)
            try:
                manifests, notes = _Job(journal, request, resources, listed, progress).finish(vocabulary)
            except FormatError as problem:
                if not stdin:
                    raise
                _forget_unless_written(target, journal)  # and with it the file that the error would name
                raise FormatError(str(problem).replace(str(spool.absolute()), "standard input")) from problem
        _remove_work(journal)
    notes = (*notes, *left_out(inputs, request))
    return _prepared(target, manifests, notes, time.monotonic() - begun, went_on=went_on)


def _remove_temporaries(target: Path) -> None:
    """Files without their final name that a killed run left beside the shards."""
    for place in (target, *(target / part for part in ("train", "val", "test"))):
        for stray in place.glob(".*.tmp"):
            stray.unlink(missing_ok=True)


def _forget_unless_written(target: Path, journal: Journal) -> None:
    """Text that was refused before its first shard was whole: what is piped in next is read, and not its copy."""
    if any(WORK not in path.parts for path in target.rglob("*.bin")):
        return
    for stray in journal.path.iterdir():
        if stray.is_dir():
            shutil.rmtree(stray, ignore_errors=True)
        elif stray.name != "lock":
            stray.unlink(missing_ok=True)


def _remove_work(journal: Journal) -> None:
    """Remove the work directory, `_FINISHED` last, so that a kill at any moment leaves what the next try needs."""
    (journal.path / "plan.json").unlink(missing_ok=True)
    for entry in journal.path.iterdir():
        if entry.name == "corpus":
            shutil.rmtree(entry)
        elif entry.name not in (_FINISHED, "lock"):
            entry.unlink()
    (journal.path / _FINISHED).unlink()
    journal.remove()


def _loaded(request: Request) -> Vocabulary:
    if Path(request.tokenizer).is_file():
        # Loading and encoding together, so that the one number in the error suffices for both.
        refuse_little_memory(request.tokenizer, 48 * MIB + 15 * Path(request.tokenizer).stat().st_size)
    return load_vocabulary(request.tokenizer, request.eot)


def _prepared(
    target: Path, manifests: list[dict[str, Any]], notes: tuple[str, ...], took: float, **told: bool
) -> Prepared:
    """What came out, according to the manifests of the parts."""
    first = manifests[0]
    provenance = first["provenance"]
    return Prepared(
        str(target),
        sum(part["tokens"] for part in manifests),
        sum(part["documents"] for part in manifests),
        sum(len(part["shards"]) for part in manifests),
        first["dtype"],
        first["vocab"],
        provenance["met"],
        first["encoder"],
        notes,
        took,
        provenance["inputs"]["bytes"],
        told.get("went_on", False),
        told.get("was_complete", False),
    )


class _Job:
    """One job, run while its lock is held."""

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
        self._tokenizer = f"--train-bpe {request.train_bpe}" if request.train_bpe else request.tokenizer

    def finish(self, vocabulary: Vocabulary | None) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
        """Do everything that is left to do; returns the manifests and notes for the summary."""
        fingerprint = vocabulary.fingerprint if vocabulary is not None else ""
        planned = [(one.path, one.size, one.modified) for one in self._inputs]
        self._journal.agree(self._request, planned, tokenizer=fingerprint)
        if vocabulary is None:
            vocabulary = self._trained()
        foreign = self._request.format != "lowtide"
        target = self._journal.path / "corpus" if foreign else self._journal.output
        parted = self._request.val + self._request.test > 0
        single = self._total if parted and len(self._inputs) == 1 and self._inputs[0].kind == "text" else 0
        with WorkerProcesses() as pool:
            recipe, choice = self._planned(vocabulary, pool)
            assembler = Assembler(self._journal, recipe, target, self._resources.seen_bytes, single)
            try:
                self._encode(assembler, recipe, pool)
            finally:
                assembler.close()
        self._progress(replace(self._status(assembler), stage="writing"))
        manifests = [self._manifest(assembler, writer, vocabulary, choice) for writer in assembler.writers]
        if foreign:
            write_foreign(target, self._journal, self._request.format, self._request.shard_tokens)
        note = f"one document: {', '.join(assembler.parts)} are cut from it at token borders, in this order"
        notes = (*([note] if single else ()), *choice.notes)
        self._journal.write(_FINISHED, {"manifests": manifests, "notes": notes})
        return manifests, notes

    def _planned(self, vocabulary: Vocabulary, pool: WorkerProcesses) -> tuple[Recipe, Choice]:
        """Who encodes, in which memory. Workers start while that is found out; gigatoken needs the most memory."""
        limit = memory_limit()  # measured before the libraries are loaded: `needed_memory` includes them
        if self._request.dedup:
            refuse_little_memory("--dedup", self._resources.seen_bytes, limit)
        alone = self._resources.engine == "ray" or vocabulary.kind == "bytes"
        if not alone:
            pool.start(self._resources.worker_count(needed_memory("gigatoken", vocabulary), limit.left))
        choice = self._chosen(vocabulary, limit.left)
        needed = needed_memory(choice.name, vocabulary)
        self._workers = self._resources.worker_count(needed, limit.left)
        if not self._workers:
            refuse_little_memory(self._tokenizer, needed, limit)
        if not alone:
            pool.start(self._workers)
        self._budget = self._resources.budget_bytes(self._workers)
        # A quarter is for blocks that wait here; of the rest, each worker has 16 MiB for the blocks at hand.
        spare = self._budget * 3 // 4 - 16 * MIB * self._workers if self._workers else 0
        cache = min(CACHE, max(self._budget // 4, spare) // max(1, self._workers))
        return Recipe(self._request, vocabulary, choice.name, cache), choice

    def _encode(self, assembler: Assembler, recipe: Recipe, pool: WorkerProcesses) -> None:
        self._progress(self._status(assembler))
        for block in self._blocks(assembler, recipe, pool):
            assembler.take(block)
            self._progress(self._status(assembler))
        assembler.end()
        if assembler.tokens == 0:
            many = len(self._inputs)
            raise FormatError(
                f"{self._inputs[0].path}: expected text, got none in {many:,} file{'' if many == 1 else 's'} "
                f"of {format_size(self._total)}. Name files that hold text."
            )
        for part, writer in zip(assembler.parts, assembler.writers, strict=True):
            if writer.tokens == 0:
                share = -(-assembler.least * 1000 // 1) / 1000 if part == "val" else 0.0
                way = (
                    f"Use --val {share:g}"
                    if 0 < share < 0.6
                    else "Cut the text into more documents with --lines or --separator"
                )
                raise FormatError(
                    f"{self._inputs[0].path}: expected documents for {part}, got none of {assembler.tally.documents}: "
                    f"the hash of a document decides its part. {way}, in an empty directory."
                )

    def _blocks(self, assembler: Assembler, recipe: Recipe, pool: WorkerProcesses) -> Iterator[EncodedBlock]:
        sections = sections_of(self._inputs, self._request, recipe.vocabulary.features.cut)
        sections = islice(sections, assembler.section, None)
        skip, workers = assembler.block, self._workers
        if self._resources.engine == "ray":
            return encoded_by_ray(sections, recipe, skip, self._resources.address, self._resources.workers)
        if recipe.encoder == "bytes" or not workers:
            return encoded_here(sections, recipe, skip, 2 if workers else 0)
        return pool.encoded(sections, recipe, skip, max(16 << 20, self._budget // 4))

    def _status(self, assembler: Assembler) -> Status:
        documents = sum(writer.documents for writer in assembler.writers)
        return Status("encoding", assembler.done, self._total, assembler.tokens, documents, assembler.shards)

    def _trained(self) -> Vocabulary:
        """The tokenizer that this job trains, or had trained before it was stopped."""
        place = self._journal.path / "tokenizer.json"
        if not place.exists():
            self._progress(Status("tokenizer"))
            least = training_memory(self._request.train_bpe)
            refuse_little_memory(self._tokenizer, least + 8 * LEAST_SAMPLE)
            left = memory_limit().left
            most = SAMPLE if left is None else min(SAMPLE, (left - least) // 8)
            texts = sample_texts(self._inputs, self._request, most)
            text, trainer = trained(texts, self._request.train_bpe, self._journal.path)
            small = most if most < SAMPLE and most < self._total else 0  # gives another tokenizer, so it is recorded
            self._journal.write("trainer.json", {"trainer": trainer, **({"sample": small} if small else {})})
            _write(place, text.encode())
        return from_json(str(place), place.read_text(encoding="utf-8"), self._request.eot)

    def _chosen(self, vocabulary: Vocabulary, room: int | None) -> Choice:
        """Which library encodes: decided once per job."""
        before = self._journal.read("encoder.json")
        if before is not None:
            return Choice(before["name"], before["version"], tuple(before["notes"]))
        self._progress(Status("tokenizer"))
        choice = choose_encoder(vocabulary, self._resources.tokenizer_engine, room)
        if (twice := vocabulary.features.repeated) is not None:
            raise FormatError(
                f"{self._tokenizer}: expected each merge once, got {twice[0]!r} as merge {twice[1]} and again "
                f"as merge {twice[2]}. Remove the second: it would override the rank of the first."
            )
        if vocabulary.size < self._request.train_bpe:
            note = f"the text supports {vocabulary.size} ids of the {self._request.train_bpe} asked for"
            choice = replace(choice, notes=(note, *choice.notes))
        self._journal.write("encoder.json", vars(choice))
        return choice

    def _manifest(
        self, assembler: Assembler, writer: ShardWriter, vocabulary: Vocabulary, choice: Choice
    ) -> dict[str, Any]:
        """Write the tokenizer beside the shards, then the manifest, which makes the corpus complete. It has no paths
        and no times, so that equal input gives equal bytes anywhere."""
        trainer = self._journal.read("trainer.json")
        inputs = {"files": len(self._inputs), "bytes": self._total, "sha256": inputs_digest(self._inputs)}
        part = {"part": writer.directory.name} if self._request.val + self._request.test else {}
        content = {
            "lowtide": 1,
            "dtype": vocabulary.dtype,
            "vocab": vocabulary.size,
            "eot": vocabulary.eot,
            "tokens": writer.tokens,
            "documents": writer.documents,
            "shards": [shard.as_dict() for shard in writer.shards],
            "tokenizer": vocabulary.describe() | _trained_by(trainer),
            "encoder": choice.told,
            "provenance": {
                **part,
                "settings": _settings(self._request),
                "inputs": inputs,
                "met": assembler.tally.as_dict(),
            },
        }
        if vocabulary.file:
            _write(writer.directory / vocabulary.file, vocabulary.content)
        write_manifest(writer.directory, content)
        return content


def _trained_by(trainer: dict[str, Any] | None) -> dict[str, Any]:
    if trainer is None:
        return {}
    return {"trained_by": trainer["trainer"]} | ({"trained_on": trainer["sample"]} if "sample" in trainer else {})


def _write(path: Path, content: bytes) -> None:
    with atomic_write(path) as file:
        file.write(content)


def _settings(request: Request) -> dict[str, Any]:
    """The settings in a manifest, without those it records elsewhere or not at all."""
    return {name: value for name, value in vars(request).items() if name not in ("tokenizer", "format")}


_DEFAULTS = Request()  # for settings that an older manifest does not name


def _finished_manifests(target: Path) -> list[dict[str, Any]]:
    """The manifests of a corpus or of its parts, if it was prepared by us."""
    found = [stated_manifest(place) for place in corpora_in(target)]
    return [content for content in found if isinstance(content.get("provenance"), dict)]


def _refuse_other_corpus(
    target: Path, content: dict[str, Any], request: Request, inputs: list[Input], vocabulary: Vocabulary | None
) -> None:
    """Accept a finished corpus only if it is the one asked for; the error names what differs."""
    told, advice = content["provenance"], "Name another directory with -o"
    for name, value in _settings(request).items():
        if (was := told["settings"].get(name, getattr(_DEFAULTS, name))) != value:
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
