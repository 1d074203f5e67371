"""The settings that fix a corpus's bytes.

One frozen value, checked here and nowhere else. It is compared when a stopped `prepare` or `convert` continues, and the
manifest records it; it says nothing about speed or memory.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from lowtide.arguments import at_least, one_of

FORMATS = ("lowtide", "nanogpt", "llmc", "megatron")
POLICIES = ("refuse", "replace")
SHARD_TOKENS = 100_000_000
MOST_SHARD_TOKENS = 2**31 - 1  # llm.c's header counts in int32, and no reader gains from larger files


@dataclass(frozen=True)
class Request:
    """What fixes the bytes of a corpus, apart from the inputs themselves."""

    tokenizer: str = "bytes"  # "bytes", or the path of a tokenizer.json, .tiktoken or .model
    train_bpe: int = 0  # ids of a BPE to train first; 0: use ``tokenizer``
    eot: str = ""  # the end-of-text token, by spelling or id, if the tokenizer's own is not found
    lines: bool = False
    separator: str = ""
    field: str = "text"
    column: str = "text"
    val: float = 0.0
    test: float = 0.0
    dedup: bool = False
    shard_tokens: int = SHARD_TOKENS
    invalid_utf8: str = "refuse"
    skip_bad: bool = False
    endings: str = ""  # more endings of text files, such as ".py,.rs"
    format: str = "lowtide"

    def __post_init__(self) -> None:
        one_of("--format", self.format, FORMATS)
        one_of("--invalid-utf8", self.invalid_utf8, POLICIES)
        at_least("--shard-tokens", self.shard_tokens, 1, example=f"--shard-tokens {SHARD_TOKENS}")
        if self.shard_tokens > MOST_SHARD_TOKENS:
            raise ValueError(
                f"--shard-tokens: expected at most {MOST_SHARD_TOKENS}, got {self.shard_tokens}. "
                f"Use --shard-tokens {SHARD_TOKENS}."
            )
        for flag, share in (("--val", self.val), ("--test", self.test)):
            if not 0 <= share < 1:
                raise ValueError(f"{flag}: expected a share from 0 up to 1, got {share}. Use {flag} 0.005.")
        if self.val + self.test >= 1:
            raise ValueError(
                f"--test: expected val and test to leave some text, got {self.val} + {self.test}. Use --test 0.005."
            )
        if self.lines and self.separator:
            raise ValueError(
                "--separator: expected one way to tell documents apart, got --lines too. Leave one of them out."
            )
        if self.train_bpe and self.tokenizer != "bytes":
            raise ValueError(
                f"--train-bpe: expected no other tokenizer, got --tokenizer {self.tokenizer}. Leave one of them out."
            )
        # Bytes would leave it unsaid, and a BPE would be trained first and then not have it.
        if self.eot and self.tokenizer == "bytes" and self.eot != ("<|endoftext|>" if self.train_bpe else "256"):
            maker = "one that --train-bpe makes" if self.train_bpe else "bytes"
            raise ValueError(
                f"--eot: expected the tokenizer of a file beside it, got {maker}, which has an end-of-text id already. "
                "Leave --eot out."
            )
        if self.train_bpe and self.train_bpe < 300:
            raise ValueError(
                f"--train-bpe: expected 300 ids or more (256 are bytes), got {self.train_bpe}. Use --train-bpe 8192."
            )


REQUEST_FIELDS = tuple(field.name for field in fields(Request))
