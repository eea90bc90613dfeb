"""Random small networks, with planted facts, and the batches and losses they are attacked with."""

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from fuzz.attention_blocks import ATTENTION_BLOCKS
from fuzz.blocks import FEATURE_BLOCKS, POSITION_BLOCKS, affine
from fuzz.build import Build, Shape, Step, chain
from fuzz.image_blocks import IMAGE_BLOCKS
from torch import Tensor, nn
from torch.nn import functional as fn

LOSSES: Final = ("functional", "functional", "sum", "square", "cross entropy", "column", "sequence")
BATCHES: Final = ("plain", "large", "spike", "offset", "zero", "negative", "positive", "tiny")
_ROWS: Final = 3
_CLASSES: Final = 4

Loss = Callable[[Tensor, torch.Generator], Tensor]


class Network(NamedTuple):
    """A network with everything needed to train it.

    Attributes:
        parameters: its parameters by name.
        forward: from a batch to the output (rows, classes).
        early: from a batch to the features after the first block, for a second loss.
        batch: from a kind of `BATCHES` and noise to a batch.
        losses: by name, from the output and noise to a number; each has one graph.
        loss: name of the loss that the network is trained with.
        plant: gives the parameters zeros and signs.
        text: how it was built.
    """

    parameters: dict[str, nn.Parameter]
    forward: Step
    early: Step
    batch: Callable[[str, torch.Generator], Tensor]
    losses: dict[str, Loss]
    loss: str
    plant: Callable[[], None]
    text: str


def network(seed: int, dtype: torch.dtype, autocast: bool) -> Network:
    """Return the network of this seed; one that torch refuses is drawn again."""
    for attempt in range(50):
        b = Build(seed * 64 + attempt, dtype)
        made = _draw(b)
        try:
            noise = torch.Generator().manual_seed(0)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                output = made.forward(made.batch("plain", noise))
                loss = made.losses[made.loss](output, noise)
            loss.backward()
        except (RuntimeError, ValueError, NotImplementedError):
            continue
        for parameter in made.parameters.values():
            parameter.grad = None
        return made
    raise AssertionError(f"seed {seed}: torch refused every network")


def _draw(b: Build) -> Network:
    kind = b.rng.choice(
        ("features", "features", "positions", "positions", "tokens", "image", "image")
    )
    shape: Shape = {
        "features": (_ROWS, b.rng.choice((3, 4, 6))),
        "positions": (_ROWS, b.rng.choice((2, 3)), 4),
        "tokens": (_ROWS, 3, 4),
        "image": (_ROWS, b.rng.choice((2, 4)), 6, 6),
    }[kind]
    entry, steps = shape, []
    if kind == "tokens":
        table = b.weight(9, 4)
        steps.append(lambda x: fn.embedding(x, table))
    for _ in range(b.rng.randrange(1, 5)):
        blocks = {
            2: FEATURE_BLOCKS,
            3: (*FEATURE_BLOCKS, *POSITION_BLOCKS, *POSITION_BLOCKS, *ATTENTION_BLOCKS * 3),
            4: IMAGE_BLOCKS,
        }[len(shape)]
        step, shape = b.rng.choice(blocks)(b, shape)
        steps.append(step)
    steps.append(_head(b, shape))
    loss_kind = b.rng.choice(LOSSES)
    b.note(f"loss {loss_kind}")
    return Network(
        parameters=dict(b.parameters),
        forward=chain(*steps),
        early=chain(*steps[: 2 if kind == "tokens" else 1]),
        batch=lambda name, noise: _batch(kind, entry, b.dtype, name, noise),
        losses=_losses(b.rng.randrange(_CLASSES)),
        loss=loss_kind,
        plant=b.plant,
        text=f"{kind}: {', '.join(b.notes)}",
    )


def _head(b: Build, shape: Shape) -> Step:
    """Return the way from the last features to (rows, classes)."""
    size = shape[1] if len(shape) == 4 else shape[-1]
    last = affine(b, size, _CLASSES)
    if len(shape) == 2:
        return last
    if len(shape) == 3:
        pick = b.rng.choice(("mean", "first", "max"))
        pools: dict[str, Step] = {
            "mean": lambda x: x.mean(1),
            "first": lambda x: x[:, 0],
            "max": lambda x: x.amax(1),
        }
        return chain(pools[pick], last)
    if b.chance(0.3):
        flat = affine(b, size * shape[2] * shape[3], _CLASSES)
        return lambda x: flat(x.flatten(1))
    return lambda x: last(fn.adaptive_avg_pool2d(x, 1).flatten(1))


def _batch(
    kind: str, shape: Shape, dtype: torch.dtype, name: str, noise: torch.Generator
) -> Tensor:
    if kind == "tokens":
        return torch.randint(0, 1 if name == "zero" else 9, shape[:2], generator=noise)
    x = torch.randn(shape, generator=noise)
    spike = torch.zeros(x.numel())
    spike[int(torch.randint(0, x.numel(), (1,), generator=noise))] = 1e4
    return {
        "plain": x,
        "large": x * 1e3,
        "spike": spike.reshape(shape),
        "offset": x + 3e3,
        "zero": x * 0,
        "negative": -x.abs() * 10,
        "positive": x.abs() * 10,
        "tiny": x * 1e-6,
    }[name].to(dtype)


def _losses(column: int) -> dict[str, Loss]:
    """Return the losses; some look at one column only, or at those from it on."""

    def functional(y: Tensor, noise: torch.Generator) -> Tensor:
        """Any gradient at all: a random linear function, now and then of a few outputs only."""
        factor = torch.randn(y.shape, generator=noise)
        if torch.rand(1, generator=noise) < 0.3:
            factor = 100 * factor * (torch.rand(y.shape, generator=noise) < 0.2)
        return (y * factor.to(y.dtype)).sum()

    def square(y: Tensor, noise: torch.Generator) -> Tensor:
        return fn.mse_loss(y, 10 * torch.randn(y.shape, generator=noise).to(y.dtype))

    def classes(y: Tensor, noise: torch.Generator) -> Tensor:
        return fn.cross_entropy(y, torch.randint(0, _CLASSES, (y.shape[0],), generator=noise))

    return {
        "functional": functional,
        "sum": lambda y, _: y.sum(),
        "square": square,
        "cross entropy": classes,
        "column": lambda y, _: -torch.log_softmax(y, -1)[:, column].mean(),
        "sequence": lambda y, noise: functional(torch.softmax(y, -1)[..., column:], noise),
    }
