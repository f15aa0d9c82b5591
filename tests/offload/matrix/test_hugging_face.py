"""Hugging Face models from small configurations, with their own loops and checkpointing."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

import shorthaul as sh
from tests.offload.keep_all import gradients_of, require_bit_equal, require_equal, small_offload

pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's libraries

VOCABULARY, WIDTH = 96, 64
DECODER_BLOCKS = 3


@pytest.fixture(scope="module")
def transformers() -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"  # read once, on import: nothing is ever fetched here
    return pytest.importorskip("transformers", reason="`pip install transformers`")


def _ids(batch: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(batch + length)
    return torch.randint(2, VOCABULARY, (batch, length), generator=generator)


def make_model(transformers: Any, family: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A model of the family with random weights, in training mode, and a batch for it."""
    torch.manual_seed(0)
    words = {"input_ids": _ids(4, 32), "labels": _ids(4, 32)}
    if family == "GPT-2":
        config = transformers.GPT2Config(
            vocab_size=VOCABULARY, n_positions=64, n_embd=WIDTH, n_layer=2, n_head=4
        )
        model = transformers.GPT2LMHeadModel(config)
    elif family == "BERT":
        config = transformers.BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=2 * WIDTH,
            max_position_embeddings=64,
        )
        model = transformers.BertForMaskedLM(config)
        words["attention_mask"] = (torch.arange(32) < torch.tensor([[32], [20], [9], [1]])).long()
    else:
        config = transformers.T5Config(
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            d_kv=16,
            d_ff=2 * WIDTH,
            num_layers=2,
            num_decoder_layers=DECODER_BLOCKS,
            num_heads=4,
            decoder_start_token_id=0,
        )
        model = transformers.T5ForConditionalGeneration(config)
        words["labels"] = _ids(4, 24)
    return model.train(), words


@pytest.mark.parametrize(
    "checkpoints", [None, False, True], ids=["plain", "checkpoint", "reentrant"]
)
@pytest.mark.parametrize("family", ["GPT-2", "BERT", "T5"])
def test_gradients_are_bit_equal(transformers, family, checkpoints, tmp_path):
    model, words = make_model(transformers, family)
    if checkpoints is not None:
        model.gradient_checkpointing_enable({"use_reentrant": checkpoints})
        if checkpoints:
            model.enable_input_require_grads()
    require_bit_equal(tmp_path, [*model.parameters()], lambda: model(**words).loss, least=4)


def test_the_encoders_output_is_written_once_for_all_decoder_blocks(
    transformers, tmp_path, monkeypatch
):
    model, words = make_model(transformers, "T5")
    offload = small_offload(tmp_path)
    expected = gradients_of([*model.parameters()], lambda: model(**words).loss)
    encoded: list[int] = []
    model.encoder.register_forward_hook(
        lambda _module, _given, output: encoded.append(output[0].untyped_storage()._cdata)
    )
    written: list[int] = []
    found: list[int] = []
    store, find = offload.store.offload, offload.store.find

    def noting_store(tensor: torch.Tensor, key: Any, **place: Any) -> Any:
        written.append(key.storage)
        return store(tensor, key, **place)

    def noting_find(tensor: torch.Tensor, key: Any) -> Any:
        record = find(tensor, key)
        if record is not None:
            found.append(key.storage)
        return record

    monkeypatch.setattr(offload.store, "offload", noting_store)
    monkeypatch.setattr(offload.store, "find", noting_find)
    with offload:
        require_equal(expected, gradients_of([*model.parameters()], lambda: model(**words).loss))
    assert written.count(encoded[0]) == 1
    # Keys and values of every decoder block are made from it: all but the first find it saved.
    assert found.count(encoded[0]) == 2 * DECODER_BLOCKS - 1
    assert offload.report().counts.deduplicated >= found.count(encoded[0])


@pytest.mark.parametrize("family", ["GPT-2", "T5"])
def test_a_loop_in_the_style_of_accelerate_gives_the_same_loss_curve(
    transformers, family, tmp_path
):
    accelerate = pytest.importorskip("accelerate", reason="`pip install accelerate`")

    def train(offloads: bool) -> tuple[list[float], list[torch.Tensor]]:
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model, words = make_model(transformers, family)
        offload = sh.offload.wrap(model, tmp_path, minimum_bytes=1024) if offloads else None
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        model, optimizer = accelerator.prepare(model, optimizer)
        torch.manual_seed(1)
        losses = []
        for _ in range(6):
            with accelerator.accumulate(model):
                loss = model(**words).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        if offload is not None:
            assert offload.report().counts.offloaded > 0
        return losses, [each.detach().clone() for each in model.parameters()]

    losses, weights = train(offloads=False)
    offloaded_losses, offloaded_weights = train(offloads=True)
    assert losses == offloaded_losses
    assert losses[-1] < losses[0]
    require_equal(weights, offloaded_weights)


def test_the_trainer_gives_the_same_loss_curve(transformers, tmp_path):
    pytest.importorskip("accelerate", reason="`pip install accelerate`")

    def train(offloads: bool) -> tuple[list[float], list[torch.Tensor]]:
        model, words = make_model(transformers, "GPT-2")
        rows = [{name: each[at] for name, each in words.items()} for at in range(4)] * 3
        offload = sh.offload.wrap(model, tmp_path, minimum_bytes=1024) if offloads else None
        arguments = transformers.TrainingArguments(
            str(tmp_path / "trainer"),
            max_steps=3,
            per_device_train_batch_size=4,
            use_cpu=True,
            seed=3,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(model, arguments, train_dataset=rows)
        trainer.train()
        if offload is not None:
            assert offload.report().counts.offloaded > 0
        losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
        return losses, [each.detach().clone() for each in model.parameters()]

    losses, weights = train(offloads=False)
    offloaded_losses, offloaded_weights = train(offloads=True)
    assert len(losses) == 3
    assert losses == offloaded_losses
    require_equal(weights, offloaded_weights)
