"""Models of transformers from small configurations: healthy when fresh, found when dead."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
import torch
from certificate_support import Found, Losses, found, refused, stays, zero_columns, zero_rows
from torch import Tensor, nn

from ormas_core import certify

transformers = pytest.importorskip("transformers")

HIDDEN: Final = 16
SIZE: Final = 4
"""Features of a head; there are four heads, and two of keys where queries are grouped."""
ENCODER: Final = {
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
DECODER: Final = {
    **ENCODER,
    "num_key_value_heads": 2,
    "head_dim": SIZE,
    "vocab_size": 32,
    "max_position_embeddings": 16,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
OF_GPT2: Final = {
    "n_layer": 2,
    "n_embd": HIDDEN,
    "n_head": 4,
    "n_positions": 16,
    "vocab_size": 32,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
OF_OPT: Final = {
    "hidden_size": HIDDEN,
    "word_embed_proj_dim": HIDDEN,
    "ffn_dim": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 32,
    "max_position_embeddings": 16,
    "pad_token_id": 1,
}
OF_RESNET: Final = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 2],
    "layer_type": "basic",
    "num_labels": 3,
}


@dataclass(frozen=True, slots=True)
class Kind:
    """An architecture: how it is made, and what its parts are called.

    Attributes:
        config: name and settings of its configuration.
        model: name of its class.
        block: name of its block of a number.
        unit: the layers into a hidden unit; a second one is the up projection.
        out: the layer out of it.
        heads: the layers of queries, keys, values, and out; one for three where they are fused.
        act: what a hidden unit is: a channel behind a ReLU, or a unit.
    """

    config: tuple[str, dict[str, Any]]
    model: str
    block: str
    unit: tuple[str, ...]
    out: str
    heads: tuple[str, ...]
    act: str = "unit"

    @property
    def grouped(self) -> bool:
        """Whether two heads of queries share one of keys."""
        return "num_key_value_heads" in self.config[1]


def _decoder(family: str) -> Kind:
    own = {k: v for k, v in DECODER.items() if family != "Llama" or k != "head_dim"}
    return Kind(
        (f"{family}Config", own),
        f"{family}ForCausalLM",
        "model.layers.{}.",
        ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.down_proj",
        tuple(f"self_attn.{name}_proj" for name in "qkvo"),
    )


KINDS: Final = {
    "GPT-2": Kind(
        ("GPT2Config", OF_GPT2),
        "GPT2LMHeadModel",
        "transformer.h.{}.",
        ("mlp.c_fc",),
        "mlp.c_proj",
        ("attn.c_attn", "attn.c_proj"),
    ),
    "BERT": Kind(
        ("BertConfig", {**ENCODER, "vocab_size": 32, "max_position_embeddings": 16}),
        "BertForMaskedLM",
        "bert.encoder.layer.{}.",
        ("intermediate.dense",),
        "output.dense",
        (
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
        ),
    ),
    "ViT": Kind(
        ("ViTConfig", {**ENCODER, "image_size": 8, "patch_size": 4, "num_labels": 3}),
        "ViTForImageClassification",
        "vit.layers.{}.",
        ("mlp.fc1",),
        "mlp.fc2",
        tuple(f"attention.{name}_proj" for name in "qkvo"),
    ),
    "OPT": Kind(
        ("OPTConfig", OF_OPT),
        "OPTForCausalLM",
        "model.decoder.layers.{}.",
        ("fc1",),
        "fc2",
        (*(f"self_attn.{name}_proj" for name in "qkv"), "self_attn.out_proj"),
        act="channel",
    ),
    **{family: _decoder(family) for family in ("Llama", "Qwen3", "Mistral", "Gemma")},
}

EXPLICIT: Final = ("GPT-2", "ViT", "Llama", "Qwen3")
"""Those that are also proven with softmax attention written out; its proofs are the longest."""
FORMS = pytest.mark.parametrize(
    ("name", "attention", "half"),
    [pytest.param(name, "sdpa", False, id=f"{name}, fp32") for name in KINDS]
    + [
        pytest.param(name, *form, id=f"{name}, bf16 autocast")
        for name in KINDS
        for form in [("eager", True) if name in EXPLICIT else ("sdpa", True)]
    ],
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    torch.manual_seed(0)
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


def _make(kind: Kind, attention: str) -> Any:
    name, settings = kind.config
    config = getattr(transformers, name)(**settings, attn_implementation=attention)
    return getattr(transformers, kind.model)(config).train()


def _losses(net: Any, *, half: bool) -> Losses:
    """Return a source of the model's own loss over random tokens or images."""

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            if net.main_input_name == "pixel_values":
                side = getattr(net.config, "image_size", 32)
                labels = torch.randint(0, 3, (2,))
                return net(pixel_values=torch.randn(2, 3, side, side), labels=labels).loss
            tokens = torch.randint(2, 32, (2, 5))
            return net(input_ids=tokens, labels=tokens).loss

    return loss


def _features(*heads: int) -> range:
    return range(heads[0] * SIZE, (heads[-1] + 1) * SIZE)


def _plant_units(net: Any, kind: Kind) -> tuple[set[Found], set[tuple[str, int]]]:
    """Plant in the first block: 7 dead; 8 a near miss; for a gated pair 9 dead, 10 a near miss."""
    prefix = kind.block.format(0)
    names = [prefix + name for name in kind.unit]
    layers = [net.get_submodule(name) for name in names]
    out = net.get_submodule(prefix + kind.out)
    zero_rows(layers[0], 7)
    if len(layers) == 1:
        zero_rows(layers[0], 8, bias=1e-9)
        zero_columns(out, 7, 8)
        return {(names[0], (7,), "absorbing", kind.act)}, {(names[0], 8)}
    zero_rows(layers[0], 8)
    zero_rows(layers[1], 7, 9, 10)
    zero_columns(out, 9)
    dead = {(names[0], (7,)), (names[0], (9,)), (names[1], (7, 9))}
    return {(*one, "absorbing", "unit") for one in dead}, {(names[0], 8), (names[1], 10)}


def _plant_heads(net: Any, kind: Kind) -> tuple[set[Found], set[tuple[str, int]]]:
    """Plant dead heads: in the last block by queries and keys, in the first by values and out.

    Beside the first kind a near miss: the next head has zero queries only.
    """
    first, last = (kind.block.format(number) for number in (0, 1))
    queries, keys = ((2, 3), 1) if kind.grouped else ((1,), 1)
    ways, values = ((0, 1), 0) if kind.grouped else ((2,), 2)
    near = _features(0) if kind.grouped else _features(2)
    if len(kind.heads) == 2:  # One matrix for queries, keys and values.
        fused = net.get_submodule(last + kind.heads[0])
        zero_rows(fused, *_features(*queries), *near, *_features(4 + keys))
        zero_rows(net.get_submodule(first + kind.heads[0]), *_features(8 + values))
        zero_columns(net.get_submodule(first + kind.heads[1]), *_features(*ways))
        dead = {(last + kind.heads[0], queries), (first + kind.heads[0], ways)}
        refused_name = last + kind.heads[0]
    else:
        q, k, v, out = kind.heads
        zero_rows(net.get_submodule(last + q), *_features(*queries), *near)
        zero_rows(net.get_submodule(last + k), *_features(keys))
        zero_rows(net.get_submodule(first + v), *_features(values))
        zero_columns(net.get_submodule(first + out), *_features(*ways))
        dead = {(last + q, queries), (last + k, (keys,))}
        dead |= {(first + q, ways), (first + k, (values,)), (first + v, (values,))}
        refused_name = last + q
    return {(*one, "absorbing", "head") for one in dead}, {(refused_name, row) for row in near}


@FORMS
def test_dead_units_and_heads_of_a_transformer_are_certified(
    name: str,
    attention: str,
    half: bool,
) -> None:
    """Each planted unit and head is found by name and index, and nothing else; it is true."""
    kind = KINDS[name]
    net = _make(kind, attention)
    units, near_units = _plant_units(net, kind)
    heads, near_heads = _plant_heads(net, kind)
    optimizer = torch.optim.AdamW(net.parameters())
    losses = _losses(net, half=half)
    loss = losses()
    if half:  # The graph is read alike before and after backward.
        loss.backward()
    certificates = certify(net, optimizer, loss)
    assert found(certificates) == units | heads, str(certificates)
    assert set(refused(certificates)) == near_units | near_heads
    stays(net, optimizer, losses, certificates)


@FORMS
def test_a_fresh_transformer_is_healthy(name: str, attention: str, half: bool) -> None:
    """Freshly initialised models give neither certificates nor refusals, padding rows included."""
    net = _make(KINDS[name], attention)
    loss = _losses(net, half=half)()
    loss.backward()
    certificates = certify(net, torch.optim.AdamW(net.parameters()), loss)
    assert (certificates.claims, certificates.refused) == ((), ())


def _resnet() -> Any:
    config = transformers.ResNetConfig(**OF_RESNET)
    return transformers.ResNetForImageClassification(config).train()


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16 autocast"])
def test_dead_channels_of_a_resnet_are_certified(half: bool) -> None:
    """A closed channel inside a block (3), and one of a branch that adds a constant (4)."""
    net = _resnet()
    block = "resnet.encoder.stages.1.layers.1.layer."
    inner, outer = (net.get_submodule(f"{block}{number}") for number in (0, 1))
    zero_rows(inner.convolution, 2, 3)
    zero_rows(outer.convolution, 4, 5)
    with torch.no_grad():
        inner.normalization.bias[[2, 3]] = torch.tensor([1e-9, -0.1])
        outer.normalization.weight[[4, 6]] = 0
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
    losses = _losses(net, half=half)
    loss = losses()
    certificates = certify(net, optimizer, loss)
    assert found(certificates) == {
        (f"{block}0.convolution", (3,), "absorbing", "channel"),
        (f"{block}1.convolution", (4,), "absorbing", "branch"),
    }
    assert set(refused(certificates)) == {
        (f"{block}0.convolution", 2),
        (f"{block}1.convolution", 5),
        (f"{block}1.convolution", 6),
    }
    loss.backward()
    assert certify(net, optimizer, loss) == certificates
    stays(net, optimizer, losses, certificates)


def test_a_fresh_resnet_is_healthy() -> None:
    """Neither certificates nor refusals, with branches that begin as nothing too."""
    net = _resnet()
    for module in net.modules():
        if isinstance(module, transformers.models.resnet.modeling_resnet.ResNetBasicLayer):
            nn.init.zeros_(module.layer[-1].normalization.weight)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    certificates = certify(net, optimizer, _losses(net, half=False)())
    assert (certificates.claims, certificates.refused) == ((), ())
