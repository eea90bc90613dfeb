"""Tiny transformers with planted dead units, for the tests of the checker. No test here."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Case = tuple[nn.Module, Callable[[nn.Module], Tensor]]


def dead(layer: Any, *unit: int) -> Any:
    """Set rows of a weight, and of its bias, to zero."""
    with torch.no_grad():
        layer.weight[list(unit)] = 0
        if layer.bias is not None:
            layer.bias[list(unit)] = 0
    return layer


def column(layer: Any, *unit: int) -> Any:
    """Set columns of a weight to zero."""
    with torch.no_grad():
        layer.weight[:, list(unit)] = 0
    return layer


def _transformer(name: str, plant: Callable[[nn.Module], None], **config: Any) -> Case:
    import transformers

    model = getattr(transformers, name)._from_config(
        getattr(transformers, config.pop("config"))(**config)
    )
    model.train()
    with torch.no_grad():
        plant(model)
    inputs = torch.randint(0, 40, (2, 6))
    if "image_size" in config or "num_channels" in config:
        inputs = torch.randn(2, 3, 16, 16)

    def loss(model: nn.Module) -> Tensor:
        out = model(inputs)
        found: Tensor = (out.logits if "logits" in out else out[0]).square().mean()
        return found

    return model, loss


def _gpt2(model: Any) -> None:
    mlp, attention = model.transformer.h[0].mlp, model.transformer.h[1].attn
    mlp.c_fc.weight[:, 7] = mlp.c_fc.bias[7] = mlp.c_proj.weight[7] = 0
    for first in (4, 16 + 4):
        attention.c_attn.weight[:, first : first + 4] = 0
        attention.c_attn.bias[first : first + 4] = 0


def _bert(model: Any) -> None:
    layer = model.bert.encoder.layer[0]
    dead(layer.intermediate.dense, 3)
    column(layer.output.dense, 3)
    dead(layer.attention.self.value, *range(4, 8))
    column(layer.attention.output.dense, *range(4, 8))


def _vit(model: Any) -> None:
    rows = {"0.mlp.fc1": 3, "0.intermediate.dense": 3}
    for name, module in model.named_modules():
        if name.endswith(tuple(rows)):
            dead(module, 3)
        if name.endswith(("0.mlp.fc2", "0.output.dense")):
            column(module, 3)


def _llama(model: Any) -> None:
    mlp, attention = model.model.layers[0].mlp, model.model.layers[1].self_attn
    dead(mlp.gate_proj, 5)
    dead(mlp.up_proj, 5)
    dead(attention.q_proj, *range(8))
    dead(attention.k_proj, *range(4))


def _resnet(model: Any) -> None:
    for name, module in model.named_modules():
        if name.endswith("stages.0.layers.0.layer.0"):
            dead(module.convolution, 2)
            module.normalization.bias[2] = -0.1


_TINY = {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
_BODY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}

TRANSFORMERS: dict[str, Callable[[], Case]] = {
    "gpt2": lambda: _transformer(
        "GPT2LMHeadModel", _gpt2, config="GPT2Config", n_layer=2, n_embd=16, n_head=4,
        n_positions=16, **_TINY,
    ),
    "gpt2 eager": lambda: _transformer(
        "GPT2LMHeadModel", _gpt2, config="GPT2Config", n_layer=2, n_embd=16, n_head=4,
        n_positions=16, attn_implementation="eager", **_TINY,
    ),
    "bert": lambda: _transformer(
        "BertForSequenceClassification", _bert, config="BertConfig", intermediate_size=24,
        max_position_embeddings=16, **_BODY, **_TINY,
    ),
    "vit": lambda: _transformer(
        "ViTForImageClassification", _vit, config="ViTConfig", intermediate_size=24,
        image_size=16, patch_size=8, **_BODY,
    ),
    "llama": lambda: _transformer(
        "LlamaForCausalLM", _llama, config="LlamaConfig", intermediate_size=24,
        num_key_value_heads=2, **_BODY, **_TINY,
    ),
    "resnet": lambda: _transformer(
        "ResNetForImageClassification", _resnet, config="ResNetConfig", num_channels=3,
        embedding_size=8, hidden_sizes=[16, 16], depths=[2, 2],
    ),
}  # fmt: skip
