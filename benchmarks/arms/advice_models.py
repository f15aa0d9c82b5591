"""Models of many kinds from Hugging Face's configurations and plain PyTorch, with a batch of random data each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from benchmarks.arms.first_minute_models import UNet

VOCABULARY = 2000


@dataclass(frozen=True)
class Case:
    """A model and what it is trained on."""

    model: nn.Module
    batch: Any


# Class names of configuration and model, and what makes them small; the names of sizes are each model's own.
_TEXT: dict[str, tuple[str, str, dict[str, Any]]] = {
    "GPT-2": ("GPT2", "LMHeadModel", {"n_embd": 256, "n_layer": 6, "n_head": 8}),
    "GPT-NeoX": ("GPTNeoX", "ForCausalLM", {}),
    "OPT": ("OPT", "ForCausalLM", {"word_embed_proj_dim": 256, "ffn_dim": 1024}),
    "BLOOM": ("Bloom", "ForCausalLM", {"n_layer": 6, "n_head": 8}),
    "Llama": ("Llama", "ForCausalLM", {"intermediate_size": 700}),
    "Mistral": ("Mistral", "ForCausalLM", {"intermediate_size": 700, "num_key_value_heads": 4}),
    "Qwen2": ("Qwen2", "ForCausalLM", {"intermediate_size": 700, "num_key_value_heads": 4}),
    "Gemma": ("Gemma", "ForCausalLM", {"intermediate_size": 700, "num_key_value_heads": 4, "head_dim": 32}),
    "Phi": ("Phi", "ForCausalLM", {}),
    "BERT": ("Bert", "ForMaskedLM", {}),
    "RoBERTa": ("Roberta", "ForMaskedLM", {}),
    "DistilBERT": ("DistilBert", "ForMaskedLM", {"dim": 256, "n_layers": 6, "n_heads": 8, "hidden_dim": 1024}),
    "ALBERT": ("Albert", "ForMaskedLM", {"embedding_size": 128}),
    "ELECTRA": ("Electra", "ForMaskedLM", {"embedding_size": 128}),
    "DeBERTa": ("Deberta", "ForMaskedLM", {}),
    "T5": ("T5", "ForConditionalGeneration", {"d_model": 256, "d_kv": 32, "d_ff": 1024, "num_layers": 4, "num_heads": 8, "decoder_start_token_id": 0}),
    "BART": ("Bart", "ForConditionalGeneration", {"d_model": 256, "encoder_layers": 3, "decoder_layers": 3}),
}  # fmt: skip
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "intermediate_size": 1024,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_IMAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT": ("ViT", {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 1024}),
    "Swin": ("Swin", {"embed_dim": 48, "depths": [2, 2, 2, 2], "num_heads": [2, 4, 8, 16], "window_size": 4}),
    "ConvNeXt-T": ("ConvNext", {}),
    "ResNet-18": ("ResNet", {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512], "depths": [2] * 4}),
    "ResNet-50": ("ResNet", {}),
    "MobileNet-V2": ("MobileNetV2", {}),
    "RegNet": ("RegNet", {}),
}  # fmt: skip


def _make_text(name: str, is_quick: bool) -> Case:
    kind, head, changes = _TEXT[name]
    rows, length = (4, 64) if is_quick else (8, 256)
    sizes = _SIZES if not {"dim", "n_embd", "n_layer", "d_model"} & changes.keys() else {
        key: value for key, value in _SIZES.items() if key.endswith(("_id", "vocab_size"))
    }  # fmt: skip
    if kind == "Bloom":
        sizes = {**sizes, "hidden_size": 256}
    configuration = getattr(transformers, f"{kind}Config")(**{**sizes, **changes})
    model = getattr(transformers, f"{kind}{head}")(configuration)
    ids = torch.randint(2, VOCABULARY, (rows, length))
    return Case(model, {"input_ids": ids, "labels": ids.clone()})


def _make_image(name: str, is_quick: bool) -> Case:
    kind, changes = _IMAGES[name]
    size, rows = (128, 2) if is_quick else (128, 16)
    sized = {"image_size": size} if kind in ("ViT", "Swin") else {}
    configuration = getattr(transformers, f"{kind}Config")(num_labels=10, **changes, **sized)
    model = getattr(transformers, f"{kind}ForImageClassification")(configuration)
    return Case(
        model, {"pixel_values": torch.randn(rows, 3, size, size), "labels": torch.arange(rows) % 10}
    )


def _make_unet(is_quick: bool) -> Case:
    size = 64 if is_quick else 256
    return Case(UNet(), torch.randn(4, 3, size, size))


def _make_layers(is_quick: bool) -> Case:
    rows = 512 if is_quick else 8192
    layers = [
        each for _ in range(6) for each in (nn.Linear(512, 512), nn.GELU(), nn.LayerNorm(512))
    ]
    return Case(nn.Sequential(*layers), torch.randn(rows, 512))


def _make_encoder(is_quick: bool) -> Case:
    rows, length = (2, 64) if is_quick else (8, 256)
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    return Case(model, torch.randn(rows, length, 256))


MODELS: dict[str, Callable[[bool], Case]] = {
    **{name: lambda quick, name=name: _make_text(name, quick) for name in _TEXT},  # type: ignore[misc]
    **{name: lambda quick, name=name: _make_image(name, quick) for name in _IMAGES},  # type: ignore[misc]
    "U-Net": _make_unet,
    "Linear layers": _make_layers,
    "TransformerEncoder": _make_encoder,
}
