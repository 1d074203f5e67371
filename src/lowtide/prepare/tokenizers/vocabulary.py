"""A tokenizer file, read once: its vocabulary, its end-of-text id, and the form text is encoded with.

Whatever the file is, text is encoded by a ``tokenizer.json`` without anything that would treat some text as more than
text: special tokens, added beginnings and ends, truncation and padding. So a document
that spells ``<|endoftext|>`` is encoded as those thirteen characters. A .tiktoken file becomes such a JSON here; a
.model keeps its own library. Costs the file and its JSON in memory. Encodes nothing.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lowtide.errors import FormatError, LowtideError
from lowtide.prepare.inputs.cuts import ANYWHERE
from lowtide.prepare.tokenizers.features import Features, features_of
from lowtide.prepare.tokenizers.tiktoken_ranks import ranks_to_json

BYTES_EOT = 256
_KNOWN_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|im_end|>", "[SEP]")
_FIRST = '{"added_tokens": ['  # how a plain tokenizer.json begins: parsing a large one again costs 12 times its size
_MOST_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True)
class Vocabulary:
    """Everything encoding needs, picklable."""

    kind: str  # "bytes", "json", "tiktoken", "model"
    file: str  # its name beside the corpus; "" for bytes
    content: bytes  # of that file
    plain: str  # tokenizer.json that takes all text as text; "" for bytes, and for .model files
    eot: int
    eot_text: str
    size: int  # ids are below this
    features: Features = field(default_factory=Features)

    @property
    def dtype(self) -> str:
        return "uint16" if self.size <= 2**16 else "uint32"

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.content).hexdigest() if self.content else "bytes"

    def describe(self) -> dict[str, Any]:
        """What a manifest says about it."""
        if self.kind == "bytes":
            return {"kind": "bytes"}
        return {"kind": self.kind, "file": self.file, "sha256": self.fingerprint, "eot": self.eot_text}


BYTES = Vocabulary("bytes", "", b"", "", BYTES_EOT, "", BYTES_EOT + 1, Features(cut=ANYWHERE))


def load_vocabulary(path: str, eot: str = "") -> Vocabulary:
    """What ``--tokenizer`` names; FormatError if the file is not a tokenizer or has no end of text."""
    if path == "bytes":
        return BYTES
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(
            f"{path}: expected a tokenizer file or 'bytes', got nothing of that name. Check the path."
        )
    if file.stat().st_size > _MOST_BYTES:
        raise FormatError(f"{path}: expected a tokenizer, got {file.stat().st_size} bytes. Name its tokenizer.json.")
    content = file.read_bytes()
    if file.suffix == ".model":
        return _sentencepiece(path, content, eot)
    if file.suffix == ".tiktoken":
        text, named = ranks_to_json(path, content), file.name
        return from_json(path, text, eot, kind="tiktoken", file=named, content=content)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise FormatError(
            f"{path}: expected a tokenizer.json, .tiktoken or .model file, got bytes that are not text. Check the path."
        ) from None
    return from_json(path, text, eot, content=content)


def from_json(
    where: str, text: str, eot: str = "", *, kind: str = "json", file: str = "tokenizer.json", content: bytes = b""
) -> Vocabulary:
    """The vocabulary of a tokenizer.json."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise FormatError(f"{where}: expected a tokenizer.json, got {problem}. Check the path.") from None
    model = whole.get("model") if isinstance(whole, dict) else None
    if not isinstance(model, dict) or "vocab" not in model:
        raise FormatError(
            f"{where}: expected a tokenizer.json with a model and its vocab, got other JSON. Check the path."
        )
    ids = _ids(model["vocab"])
    added = [token for token in whole.get("added_tokens") or () if isinstance(token, dict)]
    ids |= {str(token.get("content")): int(token.get("id", -1)) for token in added}
    if not ids or min(ids.values()) < 0:
        raise FormatError(f"{where}: expected ids of 0 or more in its vocab, got other values. Check the file.")
    spelled, number = _end_of_text(where, ids, eot)
    whole = _plain(whole)
    size = max(ids.values()) + 1
    return Vocabulary(
        kind, file, content or text.encode(), json.dumps(whole), number, spelled, size, features_of(whole)
    )


def with_separator(vocabulary: Vocabulary) -> str:
    """The same JSON with the end of text as its only special token, so that joined text is cut where documents end."""
    one = {"id": vocabulary.eot, "content": vocabulary.eot_text, "special": True, "normalized": False}
    spelled = json.dumps(one | {"single_word": False, "lstrip": False, "rstrip": False})
    rest = vocabulary.plain.removeprefix(_FIRST)
    return f"{_FIRST}{spelled}{'' if rest.startswith(']') else ', '}{rest}"


def _plain(whole: dict[str, Any]) -> dict[str, Any]:
    ordinary = [token for token in whole.get("added_tokens") or () if not token.get("special")]
    others = {name: value for name, value in whole.items() if name != "added_tokens"}
    return {"added_tokens": ordinary, **others, "post_processor": None, "truncation": None, "padding": None}


def _ids(vocab: Any) -> dict[str, int]:
    if isinstance(vocab, dict):
        return {str(token): int(number) for token, number in vocab.items()}
    return {str(entry[0]): number for number, entry in enumerate(vocab)}  # Unigram: a list of (token, score)


def _end_of_text(where: str, ids: dict[str, int], stated: str) -> tuple[str, int]:
    if stated:
        if stated in ids:
            return stated, ids[stated]
        spelled = next((token for token, number in ids.items() if str(number) == stated), None)
        if spelled is not None:
            return spelled, ids[spelled]
        raise FormatError(f"{where}: expected --eot to be one of its tokens, got {stated!r}. Name one of its tokens.")
    for token in _KNOWN_ENDS:
        if token in ids:
            return token, ids[token]
    raise FormatError(
        f"{where}: expected an end-of-text token ({', '.join(_KNOWN_ENDS[:3])} ...), got none. Name it with --eot."
    )


def _sentencepiece(path: str, content: bytes, stated: str) -> Vocabulary:
    processor = sentencepiece_processor(content, path)
    size = int(processor.get_piece_size())
    number = int(processor.eos_id())
    if stated:
        number = int(stated) if stated.isdigit() else int(processor.piece_to_id(stated))
        if not 0 <= number < size or (not stated.isdigit() and number == processor.unk_id()):
            raise FormatError(
                f"{path}: expected --eot to be one of its tokens, got {stated!r}. Name one of its tokens."
            )
    if number < 0:
        raise FormatError(f"{path}: expected an end-of-text token, got none. Name it with --eot.")
    return Vocabulary("model", "tokenizer.model", content, "", number, str(processor.id_to_piece(number)), size)


def sentencepiece_processor(content: bytes, path: str = "tokenizer.model") -> Any:
    """SentencePiece's own reader of a .model file."""
    try:
        import sentencepiece
    except ModuleNotFoundError:
        raise LowtideError(
            f"{path}: expected sentencepiece to read it, got none. Install it with: pip install 'lowtide[prepare]'"
        ) from None
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(content)
        processor.get_piece_size()
    except (RuntimeError, TypeError, ValueError, OSError) as problem:
        reason = " ".join(str(problem).split())[:120]
        raise FormatError(f"{path}: expected a SentencePiece model, got: {reason}. Check the path.") from None
    return processor
