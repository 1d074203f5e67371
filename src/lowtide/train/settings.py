"""Every number of a run in one frozen value, from defaults, a checkpoint, a TOML file and flags; later ones win.

A setting is a field here, once, with its help text and its least value; flags, TOML keys and what a checkpoint
remembers are made from these fields, so they cannot disagree. The names are nanoGPT's where nanoGPT has one.
"""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from lowtide.arguments import one_of
from lowtide.errors import discreet
from lowtide.order.locality import locality_text
from lowtide.survey.mix_plan import mix_plan
from lowtide.train.model import Shape
from lowtide.units import parse_size

NUMBER_FORMATS = ("auto", "float32", "bfloat16", "float16")
CONTROLS = ("auto", "yes", "no")
WINDOW_CUTS = ("stride", "packed")
MODEL_FIELDS = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")


Value = TypeVar("Value", str, int, float, bool)


def _setting(default: Value, text: str, least: int | None = None) -> Value:
    return field(default=default, metadata={"help": text, "least": least})


NOT_TAKEN = ("out_dir", "ledger")  # from a checkpoint: what is written is said by whoever starts the run


@dataclass(frozen=True)
class Settings:
    """One run. The defaults are the run of about three minutes on two CPU cores."""

    data: str = _setting("", "token file, corpus, or directory with train and val; default: this machine's own text")
    mix: str = _setting(
        "",
        "several corpora with weights, such as web=PATH:0.7,code=PATH:0.3; append "
        "';ROW:web=0.5,code=0.5' to change them at a row",
    )
    val_data: str = _setting(
        "", "token file or corpus for the val loss; default: val.bin beside train.bin, or a share of --data"
    )
    val_fraction: float = _setting(
        0.005, "share of --data, taken from its end, for the val loss if there is no val file"
    )
    corpus_tokens: int = _setting(
        40_000_000, "about how many tokens of this machine's text to prepare without --data", 1
    )
    data_dtype: str = _setting("", "dtype of tokens in a file without a header, such as uint16")
    eot: int = _setting(-1, "the id that ends a document; -1: as the data says")
    bos: int = _setting(-1, "the id that begins a document; -1: as the data says")
    vocab_size: int = _setting(0, "number of token ids; 0: as the data says, 256 for bytes, else 50304", 0)
    cut: str = _setting(
        "stride", "how rows are cut: stride, or packed (whole documents, padded; padding is not learned)"
    )
    documents: bool = _setting(False, "keep documents apart: attention does not cross from one into another")
    locality: str = _setting(
        "", "bytes a local shuffle mixes at a time, such as 64MiB (64MiB,1MiB: and its blocks); default: a full shuffle"
    )
    budget: str = _setting(
        "auto",
        "most memory the reader may hold, such as 64MiB; auto without --data: an eighth of the corpus, 2MiB or more",
    )
    strategy: str = _setting("auto", "how files are read: auto, read, map, remap, advise")
    engine: str = _setting("auto", "who makes the calls: auto, native, python")
    cache: str = _setting("auto", "what happens to the page cache after a read: auto, keep, drop")
    out_dir: str = _setting("out", "directory for checkpoints, metrics, weights and the picture; one run at a time")
    keep: int = _setting(2, "newest checkpoints kept per branch; those that best.pt and latest.pt name stay too", 1)
    save_interval: int = _setting(0, "steps between checkpoints; 0: as --eval-interval", 0)
    control: str = _setting(
        "auto", "measure what a pass over the corpus through a kept np.memmap holds: yes, no, auto (yes without --data)"
    )
    ledger: str = _setting("", "file that gets a line per step: its rows and their checksum")
    batch_size: int = _setting(16, "windows per forward pass", 1)
    block_size: int = _setting(128, "tokens per window", 1)
    gradient_accumulation_steps: int = _setting(1, "forward passes per step, of all ranks together", 1)
    n_layer: int = _setting(4, "transformer blocks", 1)
    n_head: int = _setting(4, "attention heads per block", 1)
    n_embd: int = _setting(128, "width of the residual stream", 2)
    dropout: float = _setting(0.0, "share of activations dropped while training")
    learning_rate: float = _setting(3e-3, "highest learning rate", 0)
    max_iters: int = _setting(1200, "optimiser steps in all", 1)
    warmup_iters: int = _setting(50, "steps of rising learning rate", 0)
    lr_decay_iters: int = _setting(0, "step where the learning rate reaches --min-lr; 0: as --max-iters", 0)
    min_lr: float = _setting(-1.0, "lowest learning rate; -1: a tenth of --learning-rate")
    weight_decay: float = _setting(0.1, "weight decay of matrices (norm gains have none)", 0)
    beta1: float = _setting(0.9, "AdamW's first decay rate")
    beta2: float = _setting(0.99, "AdamW's second decay rate")
    grad_clip: float = _setting(1.0, "largest norm of the gradient; 0: no clipping", 0)
    eval_interval: int = _setting(100, "steps between val losses", 1)
    eval_iters: int = _setting(20, "batches per val loss, always the same ones, spread over the val tokens", 1)
    log_interval: int = _setting(10, "steps between progress lines", 1)
    seed: int = _setting(1337, "fixes the order of windows, the first weights and dropout")
    device: str = _setting("cpu", "cpu, cuda or cuda:N")
    dtype: str = _setting("auto", "number format of the forward pass: auto, float32, bfloat16, float16")
    compile: bool = _setting(False, "compile the model with torch.compile")
    rank_timeout: int = _setting(600, "seconds to wait for the other ranks before giving up", 1)
    sample_tokens: int = _setting(240, "tokens sampled at the end; 0: none", 0)
    picture: bool = _setting(True, "draw loss and memory over time into --out-dir")
    weights: bool = _setting(True, "write the weights as weights.safetensors into --out-dir at the end")
    tensorboard: bool = _setting(False, "write the figures for TensorBoard too, into --out-dir/tensorboard")

    def __post_init__(self) -> None:
        for setting in fields(self):
            value, least, flag = getattr(self, setting.name), setting.metadata["least"], _flag(setting.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{flag}: expected a finite number, got {value}. Use {flag} {setting.default}.")
            if least is not None and value < least:
                raise ValueError(f"{flag}: expected {least} or more, got {value}. Use {flag} {least}.")
        if self.n_embd % (2 * self.n_head):
            nearest = max(1, round(self.n_embd / (2 * self.n_head))) * 2 * self.n_head
            raise ValueError(
                f"--n-embd: expected an even number of features for each of {self.n_head} heads, "
                f"got {self.n_embd}. Use --n-embd {nearest}."
            )
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"--seed: expected a number of 64 bits, got {self.seed}. Use --seed 1337.")
        if not self.out_dir:
            raise ValueError("--out-dir: expected a directory, got empty text. Use --out-dir out.")
        if self.dtype not in NUMBER_FORMATS:
            raise ValueError(
                f"--dtype: expected one of {', '.join(NUMBER_FORMATS)}, got {self.dtype!r}. "
                "The tokens' dtype is --data-dtype."
            )
        one_of("--control", self.control, CONTROLS)
        one_of("--cut", self.cut, WINDOW_CUTS)
        if self.locality:
            locality_text(self.locality)
        for flag, stated in (("--data", self.data), ("--val-data", self.val_data)) if self.mix else ():
            if stated:
                raise ValueError(f"--mix: expected no {flag} beside it, got {stated}. Leave {flag} out.")
        if self.mix:
            mix_plan(self.mix)
        for name, example in (("dropout", 0), ("beta1", 0.9), ("beta2", 0.99), ("val_fraction", 0.005)):
            value, flag = getattr(self, name), _flag(name)
            if not 0 <= value < 1:
                raise ValueError(f"{flag}: expected a share from 0 up to 1, got {value}. Use {flag} {example}.")
        if self.budget != "auto":
            parse_size(self.budget, what="--budget")

    @property
    def decay_until(self) -> int:
        return self.lr_decay_iters or self.max_iters

    @property
    def lowest_rate(self) -> float:
        return self.learning_rate / 10 if self.min_lr < 0 else self.min_lr

    @property
    def saves_every(self) -> int:
        return self.save_interval or self.eval_interval

    @property
    def rows_per_step(self) -> int:
        return self.batch_size * self.gradient_accumulation_steps

    def shape(self, vocab_size: int) -> Shape:
        return Shape(vocab_size, self.block_size, self.n_layer, self.n_head, self.n_embd, self.dropout)


_SETTING_KINDS: dict[str, type] = {setting.name: type(setting.default) for setting in fields(Settings)}


def layered(*layers: Mapping[str, Any]) -> Settings:
    """Defaults overridden by each mapping in turn."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update(layer)
    return replace(Settings(), **{name: checked_setting(name, value, _flag(name)) for name, value in merged.items()})


def kept_settings(settings: Settings) -> dict[str, Any]:
    """What a checkpoint keeps of its run's settings. Secrets of addresses are none of it: who goes on states them."""
    said = asdict(settings)
    return {name: discreet(value) if isinstance(value, str) else value for name, value in said.items()}


def remembered(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint remembers of its run's settings. Where a run writes is not taken from a file's content."""
    return {name: value for name, value in settings.items() if name not in NOT_TAKEN}


def from_toml(path: str | Path) -> dict[str, Any]:
    """The keys of a TOML file, each checked against the settings there are."""
    with Path(path).open("rb") as file:
        try:
            table = tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
            raise ValueError(f"{path}: expected TOML, got {problem}. Write one `name = value` per line.") from problem
    for name, value in table.items():
        if value == "" and name in _SETTING_KINDS:  # as on the command line: a variable that is not set says so too
            raise ValueError(f"{path}: {name}: expected text, got none. Leave the line out to use the default.")
    return {name: checked_setting(name, value, f"{path}: {name}") for name, value in table.items()}


def checked_setting(name: str, value: Any, where: str) -> Any:
    """``value`` in the setting's own type; ValueError for an unknown name or another type."""
    kind = _SETTING_KINDS.get(name)
    if kind is None:
        nearest = difflib.get_close_matches(name, _SETTING_KINDS, n=1, cutoff=0.0)[0]
        raise ValueError(f"{where}: expected the name of a setting, got {name!r}. Did you mean {nearest!r}?")
    if name == "mix" and isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{where}: expected {_KIND_NAMES[kind]}, got {value!r}. Write {_example(name, kind)} instead.")
    return value


_KIND_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _example(name: str, kind: type) -> str:
    default = getattr(Settings(), name)
    return {str: f'{name} = "{default}"', bool: f"{name} = {str(default).lower()}"}.get(kind, f"{name} = {default}")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def first_corpus(settings: Mapping[str, object]) -> str:
    """The corpus whose tokenizer spells a run's text: ``data``, or the first of its mixture."""
    mix = str(settings.get("mix") or "")
    return next(iter(mix_plan(mix).paths.values())) if mix else str(settings["data"])
