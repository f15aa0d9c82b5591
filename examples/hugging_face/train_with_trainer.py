"""Train a small GPT-2 with Hugging Face's Trainer, as it is and with one line more.

    python examples/hugging_face/train_with_trainer.py

The text is the source of the Python standard library on this machine, and the model is made here, so
nothing is fetched. Both trainings have the same losses to the last bit.
"""

from __future__ import annotations

import argparse
import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from shorthaul.datasets import python_text
from shorthaul.integrations import ShorthaulCallback
from shorthaul.units import format_bytes

LENGTH = 128


def make_rows(count: int) -> list[dict[str, torch.Tensor]]:
    batches = python_text("1MB").batches(1, LENGTH, count)
    return [{"input_ids": tokens[0], "labels": tokens[0]} for tokens, _ in batches]


def train(steps: int, folder: str, *callbacks: ShorthaulCallback) -> Trainer:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=128, n_layer=4, n_head=4)
    trainer = Trainer(
        GPT2LMHeadModel(config),
        TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=8,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=make_rows(8 * steps),
        callbacks=list(callbacks),
    )
    trainer.train()
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    steps = parser.parse_args().steps
    callback = ShorthaulCallback(budget="16MiB", minimum_bytes="128KiB")  # the one line
    with tempfile.TemporaryDirectory() as folder:
        plain, ours = train(steps, folder), train(steps, folder, callback)
    losses = [
        [each["loss"] for each in trainer.state.log_history if "loss" in each]
        for trainer in (plain, ours)
    ]
    if losses[0] != losses[1]:
        raise SystemExit("the losses differ, which must never happen")
    told = ours.state.log_history[-1]
    live = format_bytes(told["shorthaul_peak_live_bytes"])
    written = format_bytes(told["shorthaul_written_bytes"])
    print(f"{steps} steps, every loss is equal to the last bit")
    print(f"gained: at most {live} of activations in memory; {written} went to disk and came back")


if __name__ == "__main__":
    main()
