"""Takes a proof at its word: trains on with whatever might move what is proven."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple

import torch
from fuzz import claims, proofs
from fuzz.build import seeded
from fuzz.grammar import BATCHES, LOSSES, Network, network
from fuzz.proofs import Held
from torch import Tensor, nn, optim
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from ormas_core.certificates.optimizers import Refused

LR_HEADROOM: Final = 2.0
DTYPES: Final = {
    "float32": (torch.float32, 5),
    "bfloat16": (torch.bfloat16, 2),
    "float64": (torch.float64, 2),
    "float16": (torch.float16, 1),
}


class Violation(NamedTuple):
    """A counterexample: what was proven and did not hold."""

    seed: int
    step: int
    parameter: str
    what: str
    text: str


@dataclass(slots=True)
class Tally:
    """What a fuzz run did."""

    networks: int = 0
    certified: Counter[str] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    optimizers: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    claims: Counter[str] = field(default_factory=Counter)
    bounded: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Take in what another process did."""
        for own in fields(self):
            mine, theirs = getattr(self, own.name), getattr(other, own.name)
            if isinstance(mine, Counter):
                mine.update(theirs)
            else:
                setattr(self, own.name, mine + theirs)


def optimizer_settings(rng: random.Random) -> tuple[type[Optimizer], dict[str, Any]]:
    """Return an optimizer and settings of every kind, refused ones among them."""
    lr = rng.choice((1e-3, 1e-2, 0.1))
    decay = rng.choice((0.0, 0.0, 1e-2, 0.3))
    momentum = rng.choice((0.0, 0.5, 0.9))
    betas = (rng.choice((0.0, 0.5, 0.9)), rng.choice((0.9, 0.99, 0.999)))
    foreach = rng.choice((False, True))
    both: dict[str, Any] = {"lr": lr, "weight_decay": decay, "foreach": foreach}
    adam = {**both, "betas": betas, "eps": rng.choice((1e-8, 1e-8, 1e-4))}
    sgd = {**both, "momentum": momentum}
    nesterov = momentum > 0 and rng.random() < 0.5
    choices: list[tuple[type[Optimizer], dict[str, Any]]] = [
        (optim.SGD, {**sgd, "nesterov": nesterov}),
        (optim.SGD, {**sgd, "dampening": rng.choice((0.0, 0.5))}),
        (optim.SGD, {"lr": lr}),
        (optim.Adam, {**adam, "amsgrad": rng.random() < 0.3}),
        (optim.AdamW, adam),
        (optim.AdamW, {**adam, "fused": True, "foreach": False}),
        (optim.NAdam, {**adam, "decoupled_weight_decay": rng.random() < 0.5}),
        (optim.RAdam, {**adam, "decoupled_weight_decay": rng.random() < 0.5}),
        (optim.Adamax, adam),
        (optim.Adagrad, both),
        (optim.RMSprop, {**sgd, "centered": rng.random() < 0.2}),
        (optim.Adadelta, both),
        (optim.Rprop, {"lr": lr, "foreach": foreach}),
        (optim.ASGD, {**both, "lambd": rng.choice((0.0, 1e-2))}),
        (optim.Adafactor, {"lr": lr, "weight_decay": decay, "foreach": foreach}),
    ]
    return rng.choice(choices)


class _Finite(TorchDispatchMode):
    """Notes whether every number formed is finite: hypothesis H2."""

    def __init__(self) -> None:
        super().__init__()
        self.holds = True

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, Tensor) and one.is_floating_point():
                self.holds &= bool(one.isfinite().all())
        return made


class _Run:
    """One network in training."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, seeded(seed)
        self.dtype = self.rng.choices(list(DTYPES), [weight for _, weight in DTYPES.values()])[0]
        self.autocast = self.dtype == "float32" and self.rng.random() < 0.15
        self.net: Network = network(seed, DTYPES[self.dtype][0], self.autocast)
        self.one_loss = self.rng.random() < 0.7
        self.certify = self.rng.random() < 0.3
        self.claims: list[claims.Claim] = []
        self.second_loss = self.rng.random() < 0.2
        self.noise = torch.Generator().manual_seed(seed + 1)
        kind, self.settings = optimizer_settings(self.rng)
        self.lr_max = self.settings["lr"] * LR_HEADROOM
        self.parameters: dict[str, nn.Parameter] = self.net.parameters
        self.optimizer = kind(list(self.parameters.values()), **self.settings)

    def backward(self, kind: str) -> list[Tensor]:
        """Run one batch forward and backward; return what the proofs of its graphs start from."""
        self.optimizer.zero_grad()
        x = self.net.batch(kind, self.noise)
        name = self.net.loss if self.one_loss else self.rng.choice(LOSSES)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            output = self.net.forward(x)
            losses = [self.net.losses[name](output, self.noise)]
            starts = losses if self.one_loss else [output]
            early = self.net.early(x) if self.second_loss else None
            if early is not None and early.requires_grad:
                losses = [*losses, self.net.losses["functional"](early, self.noise)]
                starts = [*starts, losses[1] if self.one_loss else early]
        for loss in losses:
            loss.backward()
        return starts

    def text(self) -> str:
        """Say what network, optimizer and losses this is."""
        settings = f"{type(self.optimizer).__name__} {self.settings} {self.dtype}"
        losses = f"one loss {self.one_loss}, second loss {self.second_loss}"
        return f"{self.net.text}; {settings}; autocast {self.autocast}; {losses}"

    def finite(self) -> bool:
        values = [p.detach().flatten() for p in self.parameters.values()]
        values += [p.grad.flatten() for p in self.parameters.values() if p.grad is not None]
        return bool(torch.cat(values).isfinite().all())

    def steps(self, count: int, kind: str = "plain") -> None:
        for _ in range(count):
            self.backward(kind)
            self.optimizer.step()

    def rest_zeros(self) -> None:
        """Take what momentum is left from parameters that are exactly zero."""
        for parameter in self.parameters.values():
            for state in self.optimizer.state.get(parameter, {}).values():
                if isinstance(state, Tensor) and state.shape == parameter.shape:
                    state[parameter.detach() == 0] = 0


def fuzz_one(seed: int, tally: Tally, most_steps: int = 12) -> None:
    """Draw, plant, prove and attack one network."""
    run = _Run(seed)
    tally.networks += 1
    warm = run.rng.random() < 0.4
    if warm:
        run.steps(run.rng.randrange(1, 4))
    run.net.plant()
    if warm and run.rng.random() < 0.7:
        run.rest_zeros()
    if run.rng.random() < 0.2:
        run.steps(run.rng.randrange(1, 3))
    if not run.finite():
        tally.skipped["not finite before the proof"] += 1
        return
    losses = run.backward("plain")
    places = 0 if run.rng.random() < 0.5 else 1024
    proven = proofs.prove(losses, run.parameters, run.optimizer, run.lr_max, places)
    said = proofs.held(proven)
    for name in proofs.unsupported(said):
        what = "a fact is used, and its gradient is not masked"
        tally.violations.append(Violation(seed, -1, name, what, run.text()))
    if not any(bool(one.closed.any()) for one in said.values()):
        return
    if run.certify:
        run.claims = claims.absorbing(run.parameters, run.optimizer, losses, run.lr_max)
        tally.claims.update(claim.kind.value for claim in run.claims)
    kind = run.net.text.partition(":")[0]
    tally.certified[kind] += 1
    tally.closed[kind] += sum(int(one.closed.sum()) for one in said.values())
    tally.optimizers[type(run.optimizer).__name__] += 1
    tally.dtypes[run.dtype + (" autocast" if run.autocast else "")] += 1
    _attack(run, said, [graph.digest for graph in proven.graphs], tally, most_steps)


def _attack(
    run: _Run, said: Mapping[str, Held], digests: list[str], tally: Tally, most_steps: int
) -> None:
    for step in range(most_steps):
        kind = run.rng.choice(BATCHES)
        before = run.noise.get_state()
        losses = run.backward(kind)
        if not run.finite():
            tally.skipped["not finite in the attack"] += 1
            return
        found = [*_moving(run, said), *claims.moving(run.parameters, run.claims)]
        if found and not _hypotheses(run, kind, before, losses, digests, tally):
            return
        for group in run.optimizer.param_groups:
            group["lr"] = run.lr_max * run.rng.choice((1.0, 1.0, 0.5, 0.01, 0.0))
        run.optimizer.step()
        if not run.finite():
            tally.skipped["not finite in the attack"] += 1
            return
        found += [*_changed(run, said), *claims.changed(run.parameters, run.claims)]
        tally.steps += 1
        if found:
            text = f"{run.text()}; batch {kind}"
            tally.violations.extend(Violation(run.seed, step, *one, text) for one in found)
            return


def _moving(run: _Run, said: Mapping[str, Held]) -> Iterator[tuple[str, str]]:
    for name, one in said.items():
        grad = run.parameters[name].grad
        if grad is not None and bool((grad[one.closed] != 0).any()):
            yield name, f"a closed element has gradient {float(grad[one.closed].abs().max()):.3g}"


def _changed(run: _Run, said: Mapping[str, Held]) -> Iterator[tuple[str, str]]:
    for name, one in said.items():
        value = run.parameters[name].detach()
        for fact, mask, holds in (
            ("zero", one.zero, value == 0),
            ("<= 0", one.neg, value <= 0),
            (">= 0", one.pos, value >= 0),
        ):
            if not bool(holds[mask].all()):
                yield name, f"an element that is {fact} for ever is {float(value[mask].max()):.3g}"


def _hypotheses(
    run: _Run, kind: str, before: Tensor, losses: list[Tensor], digests: list[str], tally: Tally
) -> bool:
    """Whether the step that broke a claim met what every claim presupposes."""
    if [graph.digest for graph in proofs.read(losses, run.parameters)] != digests:
        tally.skipped["another graph"] += 1
        return False
    run.noise.set_state(before)
    with _Finite() as watch:
        run.backward(kind)
    if not watch.holds:
        tally.skipped["not finite inside"] += 1
    return watch.holds


def fuzz(seeds: range, tally: Tally | None = None) -> Tally:
    """Attack the networks of these seeds."""
    tally = Tally() if tally is None else tally
    for seed in seeds:
        try:
            fuzz_one(seed, tally)
        except Refused as refused:
            raise AssertionError(f"seed {seed}: {refused} was raised and not recorded") from refused
    return tally
