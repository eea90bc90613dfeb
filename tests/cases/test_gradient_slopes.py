"""Report 8, retold as tiny reproductions, and sound networks that must stay silent.

Link: github.com/modelscope/ms-swift/issues/6992.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from slope_support import VOCABULARY, language_batch, language_loss, one_check
from support import of
from torch import Tensor, nn

from ormas_core import (
    GradientSlope,
    Measurement,
    MemorySink,
    Monitor,
    MonitorConfig,
    NonfiniteGradient,
    RunEnd,
    Signal,
    Trend,
    describe,
)

STEPS = 16
DEPTH = 40


class LinearStack(nn.Module):
    """Forty linear layers, 1 to 40, each an orthogonal matrix times a gain."""

    def __init__(self, gain: float, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        for depth in range(1, DEPTH + 1):
            layer = nn.Linear(width, width, bias=False)
            nn.init.orthogonal_(layer.weight, gain)
            self.add_module(f"layer{depth}", layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x


def stack_loss(net: nn.Module) -> Tensor:
    result: Tensor = net(torch.full((4, 8), 1e-7)).sum()
    return result


def test_case_8_geometric_growth_is_named_with_rate_layers_and_overflow(tmp_path: Path) -> None:
    """Gain 10: growth x10 per layer from layer 40 to 2, and the overflow is at layer 1."""
    sink = one_check(LinearStack(10.0), tmp_path / "run", stack_loss)
    (found,) = of(sink, GradientSlope)
    assert (found.trend, found.signal) == (Trend.GROWING, Signal.OUTPUTS)
    assert found.factor == pytest.approx(10.0, rel=0.02)
    assert (found.first, found.last, found.layers) == ("layer40", "layer2", 39)
    assert (found.beyond, found.gradient_type) == ("layer1", "float32")
    text = describe(found)
    assert "geometrically, x10 per layer from layer40 to layer2" in text
    assert "overflow of float32 at layer1" in text
    (bad,) = of(sink, NonfiniteGradient)
    assert bad.layer == "layer1"


def test_case_8_growth_is_said_before_anything_overflows(tmp_path: Path) -> None:
    """With a loss a thousand times smaller, all is finite, and the room that is left is said."""
    sink = one_check(LinearStack(10.0), tmp_path / "run", lambda net: stack_loss(net) / 1e4)
    (found,) = of(sink, GradientSlope)
    assert (found.first, found.last, found.beyond) == ("layer40", "layer1", None)
    assert found.layers_left is not None
    assert 1.0 < found.layers_left < 4.0
    assert not of(sink, NonfiniteGradient)
    assert of(sink, RunEnd)[-1].counts["gradient_slope"] == 1


def test_case_8_the_norms_of_the_parameters_do_not_show_it(tmp_path: Path) -> None:
    """Growing gradients meet shrunken inputs: all 40 norms are equal. So outputs count."""
    sink = one_check(LinearStack(10.0), tmp_path / "run", lambda net: stack_loss(net) / 1e4)
    (check,) = of(sink, Measurement)
    assert max(check.norms) < 1.01 * min(check.norms)
    assert max(check.output_peaks) > 1e37 * min(check.output_peaks)


def test_case_8_the_mirrored_gain_reads_as_vanishing(tmp_path: Path) -> None:
    """Gain 0.1, with the rate; here every parameter gradient is already exactly zero."""
    sink = one_check(LinearStack(0.1), tmp_path / "run", stack_loss)
    (found,) = of(sink, GradientSlope)
    assert (found.trend, found.first, found.last) == (Trend.VANISHING, "layer40", "layer1")
    assert found.factor == pytest.approx(0.1, rel=0.02)
    assert "vanishing" in describe(found)
    assert "x0.1 per layer" in describe(found)


def test_case_8_a_gain_of_one_is_silent(tmp_path: Path) -> None:
    """The same stack without a gain."""
    assert not of(one_check(LinearStack(1.0), tmp_path / "run", stack_loss), GradientSlope)


def sigmoids() -> nn.Module:
    layers = [nn.Sequential(nn.Linear(32, 32), nn.Sigmoid()) for _ in range(16)]
    return nn.Sequential(*layers, nn.Linear(32, 1))


def test_case_8_a_deep_stack_of_sigmoids_vanishes(tmp_path: Path) -> None:
    """The oldest of examples, at default initialisation."""
    torch.manual_seed(0)
    sink = one_check(sigmoids(), tmp_path / "run", lambda net: net(torch.randn(8, 32)).mean())
    (found,) = of(sink, GradientSlope)
    assert found.trend is Trend.VANISHING
    assert 0.05 < found.factor < 0.25
    assert (found.first, found.last) == ("15.0", "0.0")


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape: dict[str, Any] = {"n_embd": 32, "n_layer": 12, "n_head": 2, "n_positions": 32}
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    model: nn.Module = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **shape, **ends))
    return model


def bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    shape: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 12,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    model: nn.Module = BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, **shape))
    return model


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 12,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
    }
    model: nn.Module = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **shape))
    return model


def resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    model: nn.Module = ResNetForImageClassification(
        ResNetConfig(
            embedding_size=8,
            hidden_sizes=[8, 16, 32],
            depths=[2, 10, 2],
            layer_type="basic",
            num_labels=4,
        )
    )
    return model


def image_loss(net: nn.Module) -> Tensor:
    labels = torch.randint(0, 4, (8,))
    pixels = torch.randn(8, 3, 32, 32) * 0.5 + labels[:, None, None, None]
    loss: Tensor = net(pixel_values=pixels, labels=labels).loss
    return loss


class Sequences(nn.Module):
    """Tokens through a stack of blocks that map (batch, time, width) to itself."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embedding(x)
        for block in self.blocks:
            out = block(hidden)
            hidden = hidden + out[0] if isinstance(block, nn.LSTM) else out
        loss: Tensor = nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), x.flatten())
        return loss


def encoder(*, norm_first: bool) -> nn.Module:
    return Sequences(
        [
            nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, norm_first=norm_first)
            for _ in range(16)
        ]
    )


def lstm() -> nn.Module:
    return Sequences([nn.LSTM(32, 32, batch_first=True) for _ in range(10)])


def sequence_loss(net: nn.Module) -> Tensor:
    loss: Tensor = net(language_batch())
    return loss


def perceptron(norm: type[nn.Module]) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(16):
        linear = nn.Linear(32, 32)
        nn.init.kaiming_normal_(linear.weight)
        layers += [linear, *([norm(32)] if norm is not nn.Identity else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(32, 2))


def sum_loss(net: nn.Module) -> Tensor:
    x = torch.randn(32, 32)
    return nn.functional.cross_entropy(net(x), (x.sum(1) > 0).long())


SOUND: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor]]] = {
    "gpt2, pre-norm": (gpt2, language_loss),
    "bert, post-norm": (bert, language_loss),
    "llama, rms norm": (llama, language_loss),
    "resnet": (resnet, image_loss),
    "encoder, pre-norm": (lambda: encoder(norm_first=True), sequence_loss),
    "encoder, post-norm": (lambda: encoder(norm_first=False), sequence_loss),
    "lstm, residual": (lstm, sequence_loss),
    "perceptron": (lambda: perceptron(nn.Identity), sum_loss),
    "perceptron, batch norm": (lambda: perceptron(nn.BatchNorm1d), sum_loss),
    "perceptron, layer norm": (lambda: perceptron(nn.LayerNorm), sum_loss),
}


@pytest.mark.parametrize("name", SOUND)
def test_case_8_sound_networks_have_no_slope(name: str, tmp_path: Path) -> None:
    """Freshly made and trained for a while, eight layers deep or more, at half the decades."""
    make, loss_of = SOUND[name]
    torch.manual_seed(0)
    net, sink = make(), MemorySink()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    with Monitor(
        net,
        optimizer,
        out=tmp_path / "run",
        config=MonitorConfig(check_every=3, slope_min_decades=4.0),
        sinks=[sink],
        verbose=False,
    ) as monitor:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(net)
            loss.backward()
            monitor.step(loss)
            optimizer.step()
    assert not of(sink, GradientSlope)
    assert all(any(check.output_peaks) for check in of(sink, Measurement))
