"""Hugging Face Trainer: map-style rows in their own order, labels that the model shifts. See docs/trainers/hf.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipe import BATCH, LENGTH, SAVE_EVERY, STEPS, VOCAB, WORLD, Noted, feed_of, main
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from lowtide.torch import StreamDataset


def train(directory: Path, kind: str) -> None:
    # lowtide: begin
    feed = feed_of(directory, kind)
    dataset = StreamDataset(feed, rows=(feed.epoch_rows or 80) // BATCH * BATCH, style="hf")
    # lowtide: end
    arguments = TrainingArguments(
        output_dir=str(directory / "checkpoints"),
        per_device_train_batch_size=BATCH // WORLD,
        max_steps=STEPS,
        save_steps=SAVE_EVERY,
        train_sampling_strategy="sequential",  # lowtide: the rows are shuffled already
        disable_tqdm=True,
        report_to=[],
        use_cpu=True,
    )
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, max_position_embeddings=LENGTH, **sizes))
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset)
    note = Noted(directory)
    model.register_forward_pre_hook(
        lambda _model, _args, inputs: note(trainer.state.global_step, inputs["input_ids"]), with_kwargs=True
    )
    last: Any = get_last_checkpoint(arguments.output_dir) if Path(arguments.output_dir).is_dir() else None
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main(train)
