"""A script of a user of Hugging Face's Trainer; without `--callback` and `--pool` it has never heard
of shorthaul.

    python benchmarks/arms/trainer_script.py --width 768 --layers 12 --batch 4 --length 512 --steps 3

It prints a line of JSON: the loss of each step, what each took, and the most memory that was resident. The first
step is not among them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

VOCABULARY = 50257


class Clock(TrainerCallback):
    """What each step took, in seconds on the clock and in processor time."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float]] = []
        self._began = (0.0, 0.0)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """A step begins."""
        self._began = (time.perf_counter(), time.process_time())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """It is over, optimizer and all."""
        wall, cpu = self._began
        self.steps.append((time.perf_counter() - wall, time.process_time() - cpu))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("width", "layers", "batch", "length", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--callback", metavar="MEMORY", help="with shorthaul's, within this memory")
    parser.add_argument("--pool", action="store_true", help="with shorthaul's memory of tensors")
    options = parser.parse_args()
    if options.pool:
        from shorthaul.allocator.freed_memory import freed_memory

        freed_memory.settle()
        assert freed_memory.pool is not None
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=options.length,
        n_embd=options.width,
        n_layer=options.layers,
        n_head=options.width // 64,
    )
    model = GPT2LMHeadModel(config)
    count = options.batch * (options.steps + 1)
    tokens = torch.randint(VOCABULARY, (count, options.length))
    clock = Clock()
    callbacks: list[TrainerCallback] = [clock]
    if options.callback:
        from shorthaul.integrations import ShorthaulCallback

        callbacks.append(ShorthaulCallback(memory=options.callback))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model,
            TrainingArguments(
                folder,
                max_steps=options.steps + 1,
                per_device_train_batch_size=options.batch,
                gradient_checkpointing=options.checkpointing,
                logging_steps=1,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=[{"input_ids": each, "labels": each} for each in tokens],
            callbacks=callbacks,
        )
        trainer.train()
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"losses": losses, "steps": clock.steps[1:], "peak_bytes": peak_bytes}))


if __name__ == "__main__":
    main()
