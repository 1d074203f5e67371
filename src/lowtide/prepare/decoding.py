"""From ids back to text, with the tokenizer that lies beside a corpus.

One idea: the corpus itself says how to read it, so that a sample of a model is words. Costs the tokenizer's file in
memory. Bytes need nothing; others need the library that reads their file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lowtide.errors import FormatError
from lowtide.formats.tokens.manifest import MANIFEST
from lowtide.prepare.encoders import Encoder, hugging_face, make_encoder
from lowtide.prepare.tokenizer import BYTES, Vocabulary, load_vocabulary, sentencepiece_processor


class Decoder:
    """``text(ids)`` and ``ids(text)`` for one vocabulary; ids that end a text become a line of their own."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._library: Any = None
        self._encoder: Encoder | None = None

    def text(self, ids: Iterable[int]) -> str:
        """The text of these ids, invalid UTF-8 replaced; an end of text becomes an empty line."""
        runs: list[list[int]] = [[]]
        for number in ids:
            if int(number) == self.vocabulary.eot:
                runs.append([])
            else:
                runs[-1].append(int(number))
        return "\n\n".join(self._run(run) for run in runs)

    def ids(self, text: str) -> list[int]:
        """The ids of a text, without an end of text."""
        if self._encoder is None:
            reference = {"bytes": "bytes", "model": "sentencepiece"}.get(self.vocabulary.kind, "tokenizers")
            self._encoder = make_encoder(reference, self.vocabulary)
        found, _ = self._encoder.encode([text.encode()])
        return [int(number) for number in found[:-1]]

    def _run(self, ids: Sequence[int]) -> str:
        if self.vocabulary.kind == "bytes":
            return bytes(number for number in ids if number < 256).decode("utf-8", "replace")
        if self._library is None:
            model = self.vocabulary.kind == "model"
            self._library = sentencepiece_processor(self.vocabulary.content) if model else hugging_face(self.vocabulary)
        return str(self._library.decode(list(ids)))


def decoder_of(corpus: str | Path) -> Decoder | None:
    """The decoder of a prepared corpus, of its ``train`` or ``val`` part, or of one of its shards; ``None`` where no
    manifest names a tokenizer."""
    path = Path(corpus)
    places = [path, path / "train"] if path.is_dir() else [path.parent]
    for place in places:
        try:
            content = json.loads((place / MANIFEST).read_bytes())
        except (OSError, ValueError):
            continue
        told = content.get("tokenizer") if isinstance(content, dict) else None
        if isinstance(told, dict):
            return Decoder(_vocabulary(place, told))
    return None


def _vocabulary(place: Path, told: dict[str, Any]) -> Vocabulary:
    if told.get("kind") == "bytes":
        return BYTES
    file = place / Path(str(told.get("file"))).name
    vocabulary = load_vocabulary(str(file), str(told.get("eot") or ""))
    if vocabulary.fingerprint != told.get("sha256"):
        raise FormatError(
            f"{file}: expected the tokenizer this corpus was made with (sha256 {str(told.get('sha256'))[:12]}...), got "
            f"{vocabulary.fingerprint[:12]}... Copy it again."
        )
    return vocabulary
