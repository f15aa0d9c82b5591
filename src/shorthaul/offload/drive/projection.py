"""Offloading a large model's activations, on paper: bytes, bandwidth, and the life of the drives.

For a transformer, a way of splitting it over devices, and figures of device, link and drives, this
says what one device would write per step, how fast it must write for that to be hidden, and for how
long the drives are rated to take it. Nothing is measured; every assumption is listed in the result.

>>> gpt3, batch, split = KNOWN["GPT-3 175B"]
>>> projected = project(gpt3, batch=batch, parallelism=split)
>>> round(projected.written_bytes_per_step / 1e9), round(projected.step_seconds, 1)
(309, 64.5)
>>> round(projected.needed_write_bytes_per_second / 1e9, 1), projected.is_hidden
(9.6, True)

Counted per token and layer, with `w` bytes per value, `h` hidden, `f` feed-forward, `a` heads, `s`
tokens (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", count
the same tensors and get `s b h (34 + 5 a s / h)` bytes for w = 2, f = 4h and dropout)::

    inputs of two norms and of two linear layers      4 h w
    queries, keys, values; attention's output         (2 + 2 kv/a) h w     kv = key/value heads
    feed-forward: before and after the activation     2 f w                gated: 4 f w
    dropout: two masks of a byte                      2 h                  only with dropout
    attention written out: softmax                    a s w                dropout: + a s (1 + w)

In single precision, without dropout and with fused attention that is 64 h bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from shorthaul.errors import PlanError
from shorthaul.offload.drive.endurance import Endurance, estimate_bytes_per_day
from shorthaul.units import format_bytes, format_seconds

KINDS = ("gpt", "bert", "t5")


@dataclass(frozen=True)
class Transformer:
    """The shape of a model. A `t5` has `layers` in its encoder and `decoder_layers` besides."""

    name: str
    kind: str
    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    feed_forward: int | None = None  # None: 4 x hidden
    head_size: int | None = None  # None: hidden / heads
    key_value_heads: int | None = None  # None: as many as heads
    decoder_layers: int = 0
    decoder_sequence: int | None = None  # None: as long as the encoder's
    is_gated: bool = False  # SwiGLU and its like: three matrices in the feed-forward part

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise PlanError(
                f"{self.name}: kind must be one of {', '.join(KINDS)}, got {self.kind}."
            )
        if (self.decoder_layers > 0) != (self.kind == "t5"):
            raise PlanError(
                f"{self.name}: a t5 has decoder_layers and the others have none, "
                f"got {self.decoder_layers} for a {self.kind}."
            )
        sizes = (self.layers, self.hidden, self.heads, self.sequence, self.vocabulary)
        if min(sizes) < 1:
            raise PlanError(f"{self.name}: every size must be at least 1, got {sizes}.")

    @property
    def inner(self) -> int:
        """The width of all queries of a token."""
        return self.heads * (self.head_size or self.hidden // self.heads)

    @property
    def inner_key_value(self) -> int:
        """The width of all keys, or all values, of a token."""
        return self.inner * (self.key_value_heads or self.heads) // self.heads

    @property
    def wide(self) -> int:
        """The width inside the feed-forward part."""
        return self.feed_forward or 4 * self.hidden

    @property
    def target_sequence(self) -> int:
        """The tokens of the decoder of a `t5`."""
        return self.decoder_sequence or self.sequence


@dataclass(frozen=True)
class Parallelism:
    """Over how many devices each part of the work is split."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    splits_sequence: bool = True  # norms and dropout are split over the tensor-parallel group too

    @property
    def devices(self) -> int:
        """All of them."""
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True)
class Accelerator:
    """What one device computes, and its way to the drives."""

    name: str = "A100"
    flops_per_second: float = 312e12  # dense, half precision
    utilization: float = 0.45  # of a stage that is busy; the pipeline's bubble is counted apart
    link_bytes_per_second: float = 25e9  # PCIe 4.0 x16, as it is achieved


@dataclass(frozen=True)
class Drives:
    """The drives that one device writes to."""

    name: str = "4 x 3.2 TB, 3 DWPD for 5 years"
    count: int = 4
    write_bytes_per_second: float = 4e9  # each
    read_bytes_per_second: float = 7e9
    endurance: Endurance = field(
        default_factory=lambda: Endurance.parse({"dwpd": 3, "capacity": "3.2TB"})
    )


@dataclass(frozen=True)
class Projection:
    """What one device does in one step, and what was assumed to say so."""

    model: Transformer
    parallelism: Parallelism
    layer_bytes: int  # of one layer and one micro-batch; the largest kind of layer
    micro_batch_bytes: int  # of all layers of one device
    micro_batches: int
    written_bytes_per_step: int
    kept_bytes: int  # what the first stage would hold at its peak without offloading
    step_seconds: float
    needed_write_bytes_per_second: float  # to be hidden behind the step
    possible_write_bytes_per_second: float
    life_days: float | None
    assumptions: tuple[str, ...]

    @property
    def is_hidden(self) -> bool:
        """Whether link and drives are fast enough."""
        return self.needed_write_bytes_per_second <= self.possible_write_bytes_per_second

    def explain(self) -> str:
        """The projection in words, with everything that was assumed."""
        life = "not rated" if self.life_days is None else f"{self.life_days:,.0f} days"
        hidden = "hidden behind the step" if self.is_hidden else "NOT hidden: the step waits"
        return "\n".join(
            (
                f"{self.model.name} on {self.parallelism.devices:,} devices",
                f"  activations      {format_bytes(self.micro_batch_bytes)} per device and "
                f"micro-batch, {format_bytes(self.kept_bytes)} at the peak when kept",
                f"  written          {format_bytes(self.written_bytes_per_step)} per device and "
                f"step of {format_seconds(self.step_seconds)}",
                f"  write bandwidth  {self.needed_write_bytes_per_second / 1e9:.1f} GB/s needed, "
                f"{self.possible_write_bytes_per_second / 1e9:.1f} GB/s possible: {hidden}",
                f"  drives last      {life}",
                "assumed:",
                *(f"  - {each}" for each in self.assumptions),
            )
        )


def estimate_layer_bytes(
    model: Transformer,
    *,
    micro_batch: int = 1,
    value_bytes: int = 2,
    attention: str = "fused",
    has_dropout: bool = False,
    parallelism: Parallelism | None = None,
    is_decoder: bool = False,
) -> int:
    """Bytes that one layer saves for the backward pass, on one device; see the module for the sum.

    `is_decoder` adds the cross-attention that a decoder layer of a `t5` has.
    """
    if attention not in ("fused", "unfused"):
        raise PlanError(f"attention must be 'fused' or 'unfused', got {attention!r}.")
    split = parallelism or Parallelism()
    h, w, inner = model.hidden, value_bytes, model.inner
    tokens = model.target_sequence if is_decoder else model.sequence
    mask = h if has_dropout else 0

    def attention_matrix(keys: int) -> int:
        if attention == "fused":
            return 0
        return model.heads * keys * (w + (1 + w if has_dropout else 0))

    whole = 4 * h * w + 2 * mask  # per token; not split over the heads
    divided = (2 * inner + 2 * model.inner_key_value) * w
    divided += (4 if model.is_gated else 2) * model.wide * w
    divided += attention_matrix(tokens)
    whole_bytes, divided_bytes = tokens * whole, tokens * divided
    if is_decoder:  # norm, query and output of its own; keys and values from the encoder's tokens
        whole_bytes += tokens * (2 * h * w + mask)
        divided_bytes += tokens * (2 * inner * w + attention_matrix(model.sequence))
        divided_bytes += model.sequence * 2 * model.inner_key_value * w
    whole_bytes //= split.tensor if split.splits_sequence else 1
    return micro_batch * (whole_bytes + divided_bytes // split.tensor)


def estimate_step_flops(model: Transformer, batch: int) -> float:
    """Floating-point operations of one step on `batch` sequences, backward as twice the forward.

    Two per multiply and add of every matrix; attention as if nothing were masked. For f = 4h that is
    `72 b s l h^2 (1 + s / 6h + v / 12lh)` (Narayanan et al., without recomputing).
    """
    h, inner, key_value = model.hidden, model.inner, model.inner_key_value
    matrices = h * (inner + 2 * key_value) + inner * h
    matrices += (3 if model.is_gated else 2) * h * model.wide
    s, t = model.sequence, model.target_sequence
    forward = model.layers * s * (2 * matrices + 4 * s * inner)
    cross = t * (2 * 2 * h * inner + 4 * s * inner) + s * 2 * 2 * h * key_value
    forward += model.decoder_layers * (t * (2 * matrices + 4 * t * inner) + cross)
    forward += (t if model.kind == "t5" else s) * 2 * h * model.vocabulary
    return 3.0 * batch * forward


def project(
    model: Transformer,
    *,
    batch: int,
    micro_batch: int = 1,
    parallelism: Parallelism | None = None,
    accelerator: Accelerator | None = None,
    drives: Drives | None = None,
    value_bytes: int = 2,
    attention: str = "fused",
    has_dropout: bool = False,
    window_share: float = 0.5,
) -> Projection:
    """What it takes of link and drives to offload every activation of every layer.

    Args:
        model: The transformer.
        batch: Sequences of a step, over all devices.
        micro_batch: Sequences of a micro-batch (default 1).
        parallelism: How the model is divided; None (default) for one device.
        accelerator: The device; None (default) for an A100.
        drives: The drives of each device; None (default) for four of 3.2 TB.
        value_bytes: Bytes of a value (default 2).
        attention: `"fused"` (default), or `"unfused"`, which keeps the scores.
        has_dropout: Whether dropout masks are saved (default False).
        window_share: The part of a step in which its stores must be done: the forward pass is a
            third of it, and what is stored last is needed first (default 0.5).
    """
    split = parallelism or Parallelism()
    device, drives = accelerator or Accelerator(), drives or Drives()
    if batch % (micro_batch * split.data):
        raise PlanError(
            f"a batch of {batch} cannot be split into micro-batches of {micro_batch} over "
            f"{split.data} data-parallel groups."
        )
    micro_batches = batch // (micro_batch * split.data)

    def layer_bytes(*, is_decoder: bool) -> int:
        return estimate_layer_bytes(
            model,
            micro_batch=micro_batch,
            value_bytes=value_bytes,
            attention=attention,
            has_dropout=has_dropout,
            parallelism=split,
            is_decoder=is_decoder,
        )

    encoder_bytes = layer_bytes(is_decoder=False)
    decoder_bytes = layer_bytes(is_decoder=True) if model.decoder_layers else 0
    all_bytes = model.layers * encoder_bytes + model.decoder_layers * decoder_bytes
    micro_batch_bytes = math.ceil(all_bytes / split.pipeline)
    written_bytes = micro_batch_bytes * micro_batches
    busy_seconds = estimate_step_flops(model, batch) / (
        split.devices * device.flops_per_second * device.utilization
    )
    step_seconds = busy_seconds * (1 + (split.pipeline - 1) / micro_batches)
    per_drive_per_day = estimate_bytes_per_day(written_bytes / drives.count, step_seconds)
    return Projection(
        model=model,
        parallelism=split,
        layer_bytes=max(encoder_bytes, decoder_bytes),
        micro_batch_bytes=micro_batch_bytes,
        micro_batches=micro_batches,
        written_bytes_per_step=written_bytes,
        kept_bytes=micro_batch_bytes * min(split.pipeline, micro_batches),
        step_seconds=step_seconds,
        needed_write_bytes_per_second=written_bytes / (window_share * step_seconds),
        possible_write_bytes_per_second=min(
            device.link_bytes_per_second, drives.count * drives.write_bytes_per_second
        ),
        life_days=drives.endurance.days_left(bytes_per_day=per_drive_per_day),
        assumptions=(
            f"{value_bytes} bytes per value, {attention} attention, "
            f"{'with' if has_dropout else 'no'} dropout; norm statistics are not counted",
            f"batch of {batch:,} sequences in {micro_batches:,} micro-batches of {micro_batch} per "
            "device; one-forward-one-backward schedule",
            f"stores must be done within {window_share:.0%} of the step; training never pauses",
            *_state_assumptions(split, device, drives),
        ),
    )


def _state_assumptions(split: Parallelism, device: Accelerator, drives: Drives) -> tuple[str, ...]:
    return (
        "every activation of every layer is offloaded; embeddings, the last norm and logits are "
        "used at once and are not",
        f"split: tensor {split.tensor} ({'with' if split.splits_sequence else 'without'} the "
        f"sequence), pipeline {split.pipeline}, data {split.data}",
        f"{device.name}: {device.flops_per_second / 1e12:,.0f} TFLOP/s at "
        f"{device.utilization:.0%}, link {device.link_bytes_per_second / 1e9:g} GB/s",
        f"drives per device: {drives.name}, {drives.write_bytes_per_second / 1e9:g} GB/s each; "
        f"write amplification {drives.endurance.write_amplification:g}",
    )


# Shapes and global batches (in sequences) as the models' authors published them; the split over
# devices is ours where they did not say.
KNOWN: Mapping[str, tuple[Transformer, int, Parallelism]] = {
    model.name: (model, batch, split)
    for model, batch, split in (
        (Transformer("BERT-large", "bert", 24, 1024, 16, 512, 30_522), 256, Parallelism(data=8)),
        (
            Transformer(
                "T5-11B",
                "t5",
                24,
                1024,
                128,
                512,
                32_128,
                feed_forward=65_536,
                head_size=128,
                decoder_layers=24,
                decoder_sequence=114,
            ),
            128,
            Parallelism(tensor=8, data=4),
        ),
        (
            Transformer(
                "LLaMA-2 70B",
                "gpt",
                80,
                8192,
                64,
                4096,
                32_000,
                feed_forward=28_672,
                key_value_heads=8,
                is_gated=True,
            ),
            1024,
            Parallelism(tensor=8, pipeline=4, data=16),
        ),
        (
            Transformer("GPT-3 175B", "gpt", 96, 12_288, 96, 2048, 50_257),
            1536,
            Parallelism(tensor=8, pipeline=8, data=6),
        ),
        (
            Transformer(
                "LLaMA-3 405B",
                "gpt",
                126,
                16_384,
                128,
                8192,
                128_256,
                feed_forward=53_248,
                key_value_heads=8,
                is_gated=True,
            ),
            2048,
            Parallelism(tensor=8, pipeline=16, data=64),
        ),
        (
            Transformer("MT-NLG 530B", "gpt", 105, 20_480, 128, 2048, 50_257),
            1920,
            Parallelism(tensor=8, pipeline=35, data=12),
        ),
    )
}


def render_known_models() -> str:
    """The projections of the models in `KNOWN`, with the default device and drives, as Markdown."""
    lines = [
        "| model | devices (tensor x pipeline x data) | kept at the peak | written per step "
        "| step | writes needed | hidden | drives last |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- | ---: |",
    ]
    for model, batch, split in KNOWN.values():
        each = project(model, batch=batch, parallelism=split)
        years = math.inf if each.life_days is None else each.life_days / 365
        lines.append(
            f"| {model.name} | {split.devices:,} ({split.tensor} x {split.pipeline} x {split.data}) "
            f"| {each.kept_bytes / 1e9:,.1f} GB | {each.written_bytes_per_step / 1e9:,.0f} GB "
            f"| {each.step_seconds:,.1f} s | {each.needed_write_bytes_per_second / 1e9:.1f} GB/s "
            f"| {'yes' if each.is_hidden else 'no'} | {years:.1f} years |"
        )
    return "\n".join(lines)
