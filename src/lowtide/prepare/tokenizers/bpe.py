"""Train a byte-level BPE on a sample of the inputs.

Training happens in a process of its own: its memory is gone when it ends, and its output is discarded. The sample is a
fixed choice of sections, so that equal input gives an equal tokenizer. gigatoken, if installed, trains about ten times
as fast as tokenizers; the two break ties differently, so the manifest names the one that was used. Words are cut as
GPT-2 cuts them. Costs a file of `SAMPLE` bytes for the sample and a few hundred MiB while it trains.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from lowtide.errors import BudgetError, LowtideError
from lowtide.prepare.tokenizers.tiktoken_ranks import byte_letters

SAMPLE = 32 * 1024 * 1024
LEAST_SAMPLE = 1024 * 1024
_TRAINING, _PER_ID = 48 * 1024 * 1024, 960  # bytes the training process needs, beside eight times the sample
END_OF_TEXT = "<|endoftext|>"
_BETWEEN = b"\x00\x00lowtide\x00\x00"  # between documents of the sample: no merge may cross it


def training_memory(size: int) -> int:
    """Bytes that training a vocabulary of ``size`` ids takes, beside eight times the sample; measured, rounded up."""
    return _TRAINING + _PER_ID * size


def trained(texts: Iterable[bytes], size: int, directory: Path) -> tuple[str, str]:
    """(tokenizer.json, who trained it) for a vocabulary of ``size`` ids, the end of text among them."""
    directory = directory.absolute()
    sample = directory / "sample"
    written = 0
    with sample.open("wb") as file:
        for text in texts:
            written += file.write(text.replace(_BETWEEN, b"") + _BETWEEN)
    trainer = "gigatoken" if find_spec("gigatoken") is not None else "tokenizers"
    program = _GIGATOKEN if trainer == "gigatoken" else _TOKENIZERS
    done = subprocess.run(
        [sys.executable, "-c", program, str(sample), str(size)], capture_output=True, check=False, cwd=directory
    )
    found = directory / "sample.bpe"
    if done.returncode == -signal.SIGKILL:
        raise BudgetError(
            f"--train-bpe {size}: expected the training process to end by itself, got SIGKILL, which the kernel "
            "sends when memory runs out. Allow more memory, or ask for fewer ids."
        )
    if done.returncode or not found.exists():
        raise LowtideError(
            f"--train-bpe {size}: expected a tokenizer from {written} bytes of sample, got: "
            f"{(done.stderr.decode(errors='replace').strip().splitlines() or ['nothing'])[-1]}. "
            "Name more text, or a tokenizer with --tokenizer."
        )
    content = json.loads(found.read_text())
    sample.unlink()
    found.unlink()
    # gigatoken repeats merges if the text supports fewer than were asked for; the last of them would win.
    return tokenizer_json(list(dict.fromkeys((left, right) for left, right in content["merges"]))), trainer


def tokenizer_json(merges: Sequence[Sequence[str]]) -> str:
    """A byte-level BPE with these merges: end of text is id 0, then the bytes, then what the merges make."""
    letters = byte_letters()
    vocab = {END_OF_TEXT: 0} | {letters[byte]: byte + 1 for byte in range(256)}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    special = {"id": 0, "content": END_OF_TEXT, "special": True, "normalized": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "byte_fallback": False, "ignore_merges": False}
    model |= {"continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False}
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special | {"single_word": False, "lstrip": False, "rstrip": False}],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {**model, "vocab": vocab, "merges": merges},
    }
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


# Both write {"merges": [[left, right], ...]}, in the letters that stand for bytes.
_GIGATOKEN = f"""
import json, sys
from gigatoken.gigatoken_rs import train_bpe
from lowtide.prepare.tokenizers.tiktoken_ranks import byte_letters
between, letters = {_BETWEEN!r}, byte_letters()
_, merges = train_bpe(open(sys.argv[1], "rb").read(), int(sys.argv[2]), [{END_OF_TEXT!r}], separator=between)
spelled = [["".join(letters[byte] for byte in half) for half in pair] for pair in merges]
open(sys.argv[1] + ".bpe", "w").write(json.dumps({{"merges": spelled}}))
"""
_TOKENIZERS = f"""
import json, sys
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
texts = open(sys.argv[1], "rb").read().split({_BETWEEN!r})
trainer = trainers.BpeTrainer(vocab_size=int(sys.argv[2]), special_tokens=[{END_OF_TEXT!r}], show_progress=False,
                              initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
tokenizer.train_from_iterator((text.decode("utf-8", "replace") for text in texts), trainer)
merges = json.loads(tokenizer.to_str())["model"]["merges"]
merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in merges]
open(sys.argv[1] + ".bpe", "w").write(json.dumps({{"merges": merges}}))
"""
