"""The formulas against their published forms, and against what autograd really saves."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from shorthaul.errors import PlanError
from shorthaul.offload.drive.endurance import Endurance
from shorthaul.offload.drive.projection import (
    KNOWN,
    Accelerator,
    Drives,
    Parallelism,
    Transformer,
    estimate_layer_bytes,
    estimate_step_flops,
    project,
    render_known_models,
)


def gpt(**changes) -> Transformer:
    shape = {"layers": 2, "hidden": 64, "heads": 4, "sequence": 128, "vocabulary": 1000}
    return Transformer("small", "gpt", **(shape | changes))


@given(st.integers(1, 8), st.integers(1, 32), st.integers(1, 64), st.integers(1, 512))
def test_the_published_formula_is_a_special_case(b: int, a: int, size: int, s: int) -> None:
    h = a * size
    model = gpt(hidden=h, heads=a, sequence=s)
    layer_bytes = estimate_layer_bytes(model, micro_batch=b, attention="unfused", has_dropout=True)
    assert layer_bytes == s * b * (34 * h + 5 * a * s)


@given(st.sampled_from([1, 2, 4, 8]))
def test_splitting_tensors_is_the_published_formula_with_and_without_the_sequence(t: int) -> None:
    model = gpt(hidden=256, heads=8)
    s, h, a = 128, 256, 8

    def layer_bytes(splits_sequence: bool) -> int:
        return estimate_layer_bytes(
            model,
            attention="unfused",
            has_dropout=True,
            parallelism=Parallelism(tensor=t, splits_sequence=splits_sequence),
        )

    assert layer_bytes(False) == s * h * 10 + s * (24 * h + 5 * a * s) // t
    assert layer_bytes(True) == s * (34 * h + 5 * a * s) // t


def test_single_precision_with_fused_attention_is_64_bytes_per_hidden_value() -> None:
    assert estimate_layer_bytes(gpt(), value_bytes=4) == 64 * 64 * 128


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 1000))
def test_operations_are_the_published_formula(b: int, layers: int, v: int) -> None:
    model = gpt(layers=layers, vocabulary=v)
    s, h = 128, 64
    formula = 72 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    assert estimate_step_flops(model, b) == pytest.approx(formula)


# What autograd saves, counted: the formula must agree with it within 3 percent. The rest are the
# statistics of norms and of attention, which the formula leaves out.
TOLERANCE = 0.03


class Block(nn.Module):
    """A layer of a GPT in plain PyTorch; `key_value_heads` and `is_gated` as in newer ones."""

    def __init__(self, shape: Transformer, *, attention: str) -> None:
        super().__init__()
        self.shape, self.attention = shape, attention
        h, inner, key_value = shape.hidden, shape.inner, shape.inner_key_value
        self.first_norm, self.second_norm = nn.LayerNorm(h), nn.LayerNorm(h)
        self.queries, self.keys, self.values = (
            nn.Linear(h, width) for width in (inner, key_value, key_value)
        )
        self.output = nn.Linear(inner, h)
        self.up, self.down = nn.Linear(h, shape.wide), nn.Linear(shape.wide, h)
        self.gate = nn.Linear(h, shape.wide) if shape.is_gated else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        normed = self.first_norm(x)

        def heads(values: torch.Tensor) -> torch.Tensor:
            size = self.shape.inner // self.shape.heads
            return values.view(batch, tokens, -1, size).transpose(1, 2)

        q, k, v = (heads(part(normed)) for part in (self.queries, self.keys, self.values))
        mixed = self.mix(q, k, v).transpose(1, 2).reshape(batch, tokens, -1)
        x = x + self.output(mixed)
        normed = self.second_norm(x)
        if self.gate is None:
            return x + self.down(functional.gelu(self.up(normed)))
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if self.attention == "fused":
            shares = q.shape[1] != k.shape[1]
            return functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=shares
            )
        scores = q @ k.transpose(-1, -2)
        return scores.softmax(dim=-1) @ v


def saved_bytes(model: nn.Module, x: torch.Tensor) -> int:
    """Bytes of the unique storages that autograd saves, without the model's own parameters."""
    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    seen: dict[int, torch.UntypedStorage] = {}  # holding them keeps addresses from being reused

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model(x)
    assert out.requires_grad
    return sum(storage.nbytes() for storage in seen.values())


@pytest.mark.parametrize(
    ("shape", "attention", "dtype"),
    [
        (gpt(), "fused", torch.float32),
        (gpt(), "fused", torch.bfloat16),
        (gpt(hidden=128, heads=2, sequence=64), "fused", torch.float32),
        (gpt(feed_forward=96), "fused", torch.float32),
        (gpt(), "unfused", torch.float32),
        (gpt(sequence=256), "unfused", torch.float32),
        (gpt(feed_forward=192, is_gated=True), "fused", torch.float32),
    ],
    ids=["gpt", "half", "wide", "narrow", "unfused", "unfused, long", "gated"],
)
def test_the_formula_agrees_with_what_autograd_saves(
    shape: Transformer, attention: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    layers = 3
    model = nn.Sequential(*(Block(shape, attention=attention) for _ in range(layers))).to(dtype)
    x = torch.randn(2, shape.sequence, shape.hidden, dtype=dtype)
    counted = saved_bytes(model, x)
    estimated = layers * estimate_layer_bytes(
        shape, micro_batch=2, value_bytes=dtype.itemsize, attention=attention
    )
    assert counted == pytest.approx(estimated, rel=TOLERANCE)


def test_a_count_that_is_off_by_one_tensor_is_noticed() -> None:
    shape = gpt()
    model = nn.Sequential(Block(shape, attention="fused"), nn.Tanh())  # saves its output too
    counted = saved_bytes(model, torch.randn(2, shape.sequence, shape.hidden))
    estimated = estimate_layer_bytes(shape, micro_batch=2, value_bytes=4)
    assert counted != pytest.approx(estimated, rel=TOLERANCE)


def test_a_decoder_layer_has_cross_attention_besides() -> None:
    model = Transformer("t5", "t5", 2, 64, 4, 100, 1000, decoder_layers=2, decoder_sequence=50)
    own = 50 * 64 * 16 * 2
    cross = 50 * 64 * 4 * 2 + 100 * 64 * 2 * 2  # norm, query and its input, output; keys, values
    assert estimate_layer_bytes(model, is_decoder=True) == own + cross


def test_a_projection_is_made_of_its_parts() -> None:
    model = gpt(layers=8)
    split = Parallelism(tensor=2, pipeline=4, data=2)
    device = Accelerator("test", 1e9, 0.5, link_bytes_per_second=1e6)
    drives = Drives("test", 2, 1e5, 1e5, Endurance(rated_bytes=10**9, write_amplification=2.0))
    made = project(
        model, batch=32, micro_batch=2, parallelism=split, accelerator=device, drives=drives
    )
    layer_bytes = 32 * 64 * 128 * 2 // 2
    assert (made.layer_bytes, made.micro_batches) == (layer_bytes, 8)
    assert made.micro_batch_bytes == 2 * layer_bytes
    assert made.written_bytes_per_step == 8 * 2 * layer_bytes
    assert made.kept_bytes == 4 * 2 * layer_bytes
    busy_seconds = estimate_step_flops(model, 32) / (16 * 1e9 * 0.5)
    assert made.step_seconds == pytest.approx(busy_seconds * (1 + 3 / 8))
    assert made.needed_write_bytes_per_second == pytest.approx(
        made.written_bytes_per_step / (0.5 * made.step_seconds)
    )
    assert made.possible_write_bytes_per_second == 2e5
    assert not made.is_hidden
    per_day = made.written_bytes_per_step / made.step_seconds * 86_400
    assert made.life_days == pytest.approx(2 * 10**9 / 2.0 / per_day)
    assert "NOT hidden" in made.explain()
    assert all(each in made.explain() for each in made.assumptions)


def test_wider_models_need_less_bandwidth() -> None:
    needed = [
        project(gpt(hidden=64 * times), batch=1).needed_write_bytes_per_second
        for times in (1, 2, 4, 8)
    ]
    assert needed == sorted(needed, reverse=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Transformer("x", "rnn", 1, 1, 1, 1, 1), "kind must be one of gpt, bert, t5"),
        (lambda: Transformer("x", "t5", 1, 1, 1, 1, 1), "a t5 has decoder_layers"),
        (lambda: gpt(layers=0), "every size must be at least 1"),
        (lambda: estimate_layer_bytes(gpt(), attention="flash"), "must be 'fused' or 'unfused'"),
        (lambda: project(gpt(), batch=3, micro_batch=2), "a batch of 3 cannot be split"),
    ],
)
def test_configurations_that_cannot_be_are_refused(make, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make()


def test_known_models_have_about_as_many_parameters_as_their_names_say() -> None:
    billions = {
        "BERT-large": 0.33,
        "T5-11B": 11,
        "LLaMA-2 70B": 69,
        "GPT-3 175B": 175,
        "LLaMA-3 405B": 405,
        "MT-NLG 530B": 530,
    }
    assert set(billions) == set(KNOWN)
    for model, _, _ in KNOWN.values():
        h = model.hidden
        attention = h * (model.inner + 2 * model.inner_key_value) + model.inner * h
        layer = attention + (3 if model.is_gated else 2) * h * model.wide
        cross = model.decoder_layers * 4 * h * model.inner
        count = (model.layers + model.decoder_layers) * layer + cross + model.vocabulary * h
        assert count / 1e9 == pytest.approx(billions[model.name], rel=0.05)


def test_the_documentation_shows_the_table_that_the_code_makes() -> None:
    page = Path(__file__).parents[3] / "docs" / "offload.md"
    assert render_known_models() in page.read_text()
