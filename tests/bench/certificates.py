"""What proofs cost, and what they find beside the classical pattern of modules."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel, ResNetConfig, ResNetForImageClassification

from ormas_core import certify
from ormas_core.certificates import CertificateWatch, Evidence
from ormas_core.hooks import select

ROUNDS = 5
Case = tuple[str, nn.Module, Callable[[nn.Module], Tensor], int]


def best_ms(call: Callable[[], object]) -> float:
    """Return the least processor time of several calls, in milliseconds."""
    found = []
    for _ in range(ROUNDS):
        began = time.process_time()
        call()
        found.append(time.process_time() - began)
    return 1e3 * min(found)


def resnet() -> tuple[nn.Module, Tensor]:
    """Return transformers' ResNet-50 with random weights, and a loss."""
    net = ResNetForImageClassification(ResNetConfig(num_labels=10)).train()
    return net, again(net)


def again(net: Any) -> Tensor:
    """Return the loss of another batch."""
    if isinstance(net, ResNetForImageClassification):
        loss: Tensor = net(torch.randn(2, 3, 64, 64), labels=torch.tensor([0, 1])).loss
        return loss
    ids = torch.randint(0, 1000, (2, 32))
    return net(ids, labels=ids).loss  # type: ignore[no-any-return]


def gpt2() -> tuple[nn.Module, Tensor]:
    """Return a GPT-2 of 12 layers with random weights, and a loss."""
    net = GPT2LMHeadModel(GPT2Config()).train()
    return net, again(net)


def plant_units(net: Any) -> None:
    """Make one hidden unit dead in each of four layers of a GPT-2."""
    with torch.no_grad():
        for block in net.transformer.h[:4]:
            block.mlp.c_fc.weight[:, 7] = 0
            block.mlp.c_proj.weight[7] = 0


def plant_channels(net: Any) -> None:
    """Make one channel dead in four layers of a ResNet."""
    layers = [m for m in net.modules() if isinstance(getattr(m, "activation", None), nn.ReLU)]
    with torch.no_grad():
        for layer in [m for m in layers if hasattr(m, "convolution")][:4]:
            layer.convolution.weight[3] = 0
            layer.normalization.bias[3] = -0.1


def cost(
    name: str, build: Callable[[], tuple[nn.Module, Tensor]], plant: Callable[[Any], None]
) -> None:
    """Print what a full proof and a check at which nothing has changed cost."""
    net, loss = build()
    loss.backward()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    sound = best_ms(lambda: certify(net, optimizer, loss))
    watch = CertificateWatch(
        net, [(layer.name, layer.module) for layer in select(net, None).owners], [optimizer]
    )

    def check() -> None:
        watch.note([loss])
        list(watch.check(1, Evidence()))

    check()
    same = best_ms(check)
    read = best_ms(lambda: (watch.note([loss]), watch.clear()))
    plant(net)
    optimizer.zero_grad()
    loss = again(net)
    loss.backward()
    planted = best_ms(lambda: certify(net, optimizer, loss))
    found = certify(net, optimizer, loss)
    check()
    check()
    kept = best_ms(check)
    print(
        f"{name}: certify() {sound:.0f} ms; with {len(found)} certificates, traces and conditions "
        f"{planted:.0f} ms; a check at which nothing changed {same:.1f} ms (reading the graph "
        f"{read:.1f} ms), with certificates in force {kept:.1f} ms"
    )


def classical(net: nn.Module) -> int:
    """Count the channels that the classical pattern proves: modules in a row, read once.

    Conv or Linear, BatchNorm, ReLU as neighbours in one container; filter and bias zero, or scale
    zero, and shift <= 0.
    """
    total = 0
    for container in net.modules():
        row = list(container.children())
        for first, norm, gate in zip(row, row[1:], row[2:], strict=False):
            if not (
                isinstance(first, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear)
                and isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)
                and isinstance(gate, nn.ReLU)
            ):
                continue
            zero = (first.weight.flatten(1) == 0).all(1)
            if first.bias is not None:
                zero &= first.bias == 0
            total += int(((zero | (norm.weight == 0)) & (norm.bias <= 0)).sum())
    return total


class _Functional(nn.Module):
    def __init__(self, gate: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.head, self.gate = nn.Linear(8, 4), gate

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.gate(self.norm(self.conv(x))).mean((2, 3)))
        return out


def _dead(conv: Any, norm: Any, unit: int = 2) -> None:
    conv.weight.data[unit] = 0
    norm.bias.data[unit] = -0.1


def cases() -> Iterator[Case]:
    """Yield (name, network with planted units, its loss, how many units are planted)."""
    image = torch.randn(4, 3, 8, 8)

    def loss(x: Tensor) -> Callable[[nn.Module], Tensor]:
        return lambda net: functional.cross_entropy(net(x).flatten(1), torch.arange(len(x)) % 4)

    net: Any = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    _dead(net[0], net[1])
    yield "Conv2d, BatchNorm2d, nn.ReLU in a Sequential", net, loss(image), 1
    gates = {"relu": functional.relu, "relu6": functional.relu6}
    for name, gate in gates.items():
        net = _Functional(gate)
        _dead(net.conv, net.norm)
        yield f"the same with a functional {name}", net, loss(image), 1
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    net[0].weight.data[3], net[0].bias.data[3] = 0, -0.1
    yield "Linear and ReLU without a norm", net, loss(torch.randn(8, 6)), 1
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    net[2].weight.data[5], net[2].bias.data[5] = -net[2].weight.data[5].abs(), -0.1
    yield "dying ReLU: nonpositive weights on nonnegative inputs", net, loss(torch.randn(8, 6)), 1
    net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))
    net[0].weight.data[1], net[0].bias.data[1], net[2].weight.data[:, 1] = 0, 0, 0
    yield "MLP unit with GELU: in-row, bias and out-column zero", net, loss(torch.randn(8, 6)), 1
    yield from _products()
    yield from _attention()


class _Blocks(nn.Module):
    """Layers by name, and a forward pass as a function of them and the input."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def _products() -> Iterator[Case]:
    """Yield the units that no gate closes: products of zeros, and branches that add nothing."""
    x = torch.randn(8, 6)

    def loss(net: nn.Module) -> Tensor:
        return functional.cross_entropy(net(x), torch.arange(8) % 4)

    def linear(rows: int, columns: int) -> nn.Linear:
        return nn.Linear(columns, rows, bias=False)

    net: Any = _Blocks(
        lambda net, x: net.head(x + net.down(functional.silu(net.gate(x)) * net.up(x))),
        gate=linear(8, 6), up=linear(8, 6), down=linear(6, 8), head=nn.Linear(6, 4),
    )  # fmt: skip
    net.gate.weight.data[3], net.up.weight.data[3] = 0, 0
    yield "SwiGLU: gate and up rows zero, a unit of each layer", net, loss, 2
    net = _Blocks(
        lambda net, x: net.head(net.base(x) + net.b(net.a(x))),
        base=linear(6, 6), a=linear(2, 6), b=linear(6, 2), head=nn.Linear(6, 4),
    )  # fmt: skip
    net.a.weight.data[1], net.b.weight.data[:, 1] = 0, 0
    yield "a rank of an adapter with both factors zero", net, loss, 1
    net = _Blocks(
        lambda net, x: net.head(functional.relu(x + net.norm(net.fc(x)))),
        fc=linear(6, 6), norm=nn.BatchNorm1d(6), head=nn.Linear(6, 4),
    )  # fmt: skip
    net.fc.weight.data[2], net.norm.weight.data[2] = 0, 0
    yield "residual branch: filter row and norm scale zero", net, loss, 1
    net = _Blocks(
        lambda net, x: net.head(functional.relu(net.fc(x))),
        fc=nn.Linear(6, 8),
        head=nn.Linear(8, 4),
    )
    net.fc.bias.data[4] = -50
    yield "bias far below zero (bounded: for inputs up to a stated size)", net, loss, 1


def _attention() -> Iterator[Case]:
    for implementation in ("sdpa", "eager"):
        config = GPT2Config(
            n_layer=2, n_embd=32, n_head=4, vocab_size=64, n_positions=32, bos_token_id=0,
            eos_token_id=0, attn_implementation=implementation,
        )  # fmt: skip
        net: Any = GPT2LMHeadModel(config).train()
        attention = net.transformer.h[1].attn.c_attn
        for start in (8, 40):
            attention.weight.data[:, start : start + 8] = 0
            attention.bias.data[start : start + 8] = 0
        ids = torch.randint(0, 64, (2, 12))

        def lm_loss(model: Any, ids: Tensor = ids) -> Tensor:
            loss: Tensor = model(ids, labels=ids).loss
            return loss

        yield f"GPT-2, {implementation}: a head's query and key weights zero", net, lm_loss, 1


def comparison() -> None:
    """Print, for each planted case, what either way proves."""
    print(f"{'planted':<64}{'units':>6}{'pattern':>9}{'engine':>8}")
    for name, net, loss_of, planted in cases():
        loss = loss_of(net)
        found = certify(net, torch.optim.SGD(net.parameters(), lr=0.1), loss)
        proven = sum(len(c.units) for c in found if c.cls.value != "closed_now")
        print(f"{name:<64}{planted:>6}{classical(net):>9}{proven:>8}")


def main() -> None:
    """Print both tables."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    cost("ResNet-50", resnet, plant_channels)
    cost("GPT-2, 12 layers", gpt2, plant_units)
    comparison()


if __name__ == "__main__":
    main()
