"""TRL's trainers, which inherit from Hugging Face's, take the same callback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import shorthaul as sh

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of other people's libraries
WORDS = [
    "the",
    "a",
    "of",
    "bytes",
    "memory",
    "disk",
    "travels",
    "short",
    "long",
    "haul",
    "is",
    "not",
    "and",
]


@pytest.fixture(scope="module")
def trl() -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"  # read once, on import: nothing is ever fetched here
    return pytest.importorskip("trl", reason="`pip install trl`")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: at for at, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def make_model(labels: int | None = None) -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(WORDS) + 3, n_positions=64, n_embd=64, n_layer=2, n_head=4, pad_token_id=0
    )
    if labels is None:
        return transformers.GPT2LMHeadModel(config)
    config.num_labels = labels
    return transformers.GPT2ForSequenceClassification(config)


def make_rows(kind: str) -> Any:
    from datasets import Dataset

    texts = [" ".join((WORDS * 3)[at : at + 20]) for at in range(12)]
    if kind == "SFT":
        return Dataset.from_list([{"text": each} for each in texts])
    pairs = zip(texts, texts[1:] + texts[:1], strict=True)
    rows = [{"prompt": "the a", "chosen": f" {a}", "rejected": f" {b}"} for a, b in pairs]
    return Dataset.from_list(rows)


def train(trl: Any, kind: str, folder: Path, *callbacks: Any) -> Any:
    arguments = getattr(trl, f"{kind}Config")(
        str(folder),
        max_steps=3,
        per_device_train_batch_size=4,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    others = {"ref_model": make_model()} if kind == "DPO" else {}  # else fetched by its name
    trainer = getattr(trl, f"{kind}Trainer")(
        model=make_model(1 if kind == "Reward" else None),
        args=arguments,
        train_dataset=make_rows(kind),
        processing_class=make_tokenizer(),
        callbacks=list(callbacks),
        **others,
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("kind", ["SFT", "DPO", "Reward"])
def test_losses_and_weights_are_bit_equal(trl, tmp_path, kind) -> None:
    plain = train(trl, kind, tmp_path / "plain")
    callback = sh.integrations.ShorthaulCallback(
        directory=tmp_path, minimum_bytes=1024, engine="thread"
    )
    ours = train(trl, kind, tmp_path / "ours", callback)
    history = [
        [each["loss"] for each in trainer.state.log_history if "loss" in each]
        for trainer in (plain, ours)
    ]
    assert len(history[0]) == 3
    assert history[0] == history[1]
    for name, each in plain.model.state_dict().items():
        assert torch.equal(each, ours.model.state_dict()[name]), name
    assert ours.state.log_history[-1]["shorthaul_written_bytes"] > 0
    assert callback.steps == 3
    assert "training_step" not in vars(ours)
