"""``lowtide sample``: text from a trained model.

The checkpoint says what the model is and which corpus it learned from, the corpus what its ids mean. Text appears as it
is made.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from lowtide.arguments import at_least
from lowtide.cli.flags import add_json
from lowtide.cli.options import number, option, whole
from lowtide.prepare.tokenizers.spelling import NumberWords, Words, words_of
from lowtide.train.model import choose_compute
from lowtide.train.settings import first_corpus
from lowtide.train.trained import TrainedModel, load_trained


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "Let a trained model write. The prompt may also come from standard input."
    parser.add_argument("place", metavar="OUT_DIR", help="a run's directory (its newest checkpoint), or a checkpoint")
    option(parser, "--prompt TEXT", "what the text begins with; -: from standard input")
    option(parser, "--tokens N", "tokens to write (200)", whole, 200)
    option(parser, "--temperature T", "0: always the likeliest; 1: as learned (0.8)", number, 0.8)
    option(parser, "--top-k K", "choose among the K likeliest; 0: among all (50)", whole, 50)
    option(parser, "--seed N", "the same seed, the same text (1337)", whole, 1337)
    parser.add_argument("--best", action="store_true", help="the checkpoint with the lowest val loss, not the newest")
    option(parser, "--tokenizer FILE", "bytes or a tokenizer.json (default: the corpus's own)", default="")
    option(parser, "--device NAME", "cpu, cuda or cuda:N (cpu)", default="cpu")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    prompt = _prompt(arguments.prompt)
    trained = load_trained(
        Path(arguments.place), choose_compute(arguments.device, "float32").device, best=arguments.best
    )
    vocab = trained.model.shape.vocab_size
    words = words_of(first_corpus(trained.settings), vocab, arguments.tokenizer)
    ids = _first_ids(words, prompt, vocab)
    if isinstance(words, NumberWords):
        print("lowtide sample: no tokenizer is known: writing ids; name one with --tokenizer", file=sys.stderr)
    if not arguments.json:
        _show(arguments, trained, words, ids, prompt)
        return 0
    made = list(_sampled(arguments, trained, ids))
    about = {"checkpoint": str(trained.path), "step": trained.step, "seed": arguments.seed}
    print(json.dumps({**about, "prompt": prompt, "text": words.text(made), "prompt_ids": ids, "ids": made}))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    at_least("--tokens", arguments.tokens, 1, example="--tokens 200")
    at_least("--top-k", arguments.top_k, 0, example="--top-k 50")
    if at_least("--seed", arguments.seed, 0, example="--seed 1337") >= 2**63:
        raise ValueError(f"--seed: expected a number below 2**63, got {arguments.seed}. Use --seed 1337.")
    if not 0 <= arguments.temperature < float("inf"):
        raise ValueError(f"--temperature: expected 0 or more, got {arguments.temperature}. Use --temperature 0.8.")


def _prompt(given: str | None) -> str:
    """The flag's text, or what was piped in; nothing where neither is there."""
    if given == "-" or (given is None and not sys.stdin.isatty()):
        return sys.stdin.read()
    return given or ""


def _first_ids(words: Words, prompt: str, vocab: int) -> list[int]:
    ids = words.ids(prompt) or words.ids("\n" if not isinstance(words, NumberWords) else "0") or [0]
    beyond = [number for number in ids if not 0 <= number < vocab]
    if beyond:
        raise ValueError(
            f"--prompt: expected ids below the model's vocabulary of {vocab:,}, got {beyond[0]:,}. "
            "Name the tokenizer the corpus was made with, --tokenizer."
        )
    return ids


def _sampled(arguments: argparse.Namespace, trained: TrainedModel, ids: list[int]) -> Iterator[int]:
    how = {"temperature": arguments.temperature, "top_k": arguments.top_k or None, "seed": arguments.seed}
    return trained.model.sampled(ids, arguments.tokens, **how)


def _show(arguments: argparse.Namespace, trained: TrainedModel, words: Words, ids: list[int], prompt: str) -> None:
    """Print as it comes. A character whose last bytes are still to come is held back."""
    sys.stdout.write(prompt if not isinstance(words, NumberWords) else f"{prompt.strip()} ".lstrip())
    made: list[int] = []
    shown = ""
    for token in _sampled(arguments, trained, ids):
        made.append(token)
        text = words.text(made)
        if not text.endswith("\ufffd"):
            sys.stdout.write(text[len(shown) :])
            sys.stdout.flush()
            shown = text
    print(words.text(made)[len(shown) :])
