"""Report 18, retold as tiny reproductions, and a balanced mixture that must stay silent.

Link: github.com/ScienceOne-AI/DeepSeek-671B-SFT-Guide/issues/7.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from slope_support import VOCABULARY, language_loss, one_check
from support import of
from torch import Tensor, nn

from ormas_core import (
    Alarm,
    ExpertsStarving,
    ExpertUsage,
    Manifest,
    Measurement,
    MechanismState,
    MemorySink,
    Monitor,
    RunEnd,
    Status,
    describe,
)

STEPS = 16
DEPTH = 40


class Mixture(nn.Module):
    """Top-1 routing over eight experts, with a bias that users must not see as dead layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(16, 8)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)) for _ in range(8)
        )
        self.head = nn.Linear(16, 16)
        self.bias = torch.zeros(8)

    def forward(self, x: Tensor) -> Tensor:
        gates = torch.softmax(self.router(x) + self.bias, 1)
        weight, choice = gates.max(1)
        mixed = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            chosen = choice == index
            if chosen.any():
                mixed[chosen] = expert(x[chosen]) * weight[chosen, None]
        return self.head(x + mixed)


def train_mixture(
    net: Mixture, folder: Path, steps: int, every: Mapping[int, int] | None = None
) -> MemorySink:
    """Train; the experts in `every` get tokens in one of so many steps only."""
    sink = MemorySink()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    with Monitor(net, optimizer, out=folder, check_every=1, sinks=[sink], verbose=False) as monitor:
        for step in range(steps):
            for expert, period in (every or {}).items():
                net.bias[expert] = 0.0 if step % period == 0 else -50.0
            x = torch.randn(256, 16)
            optimizer.zero_grad()
            loss = (net(x) - x.roll(1, 1)).square().mean()
            loss.backward()
            monitor.step(loss)
            optimizer.step()
    return sink


def test_case_18_starving_experts_are_told_from_rare_ones(tmp_path: Path) -> None:
    """Two of eight get nothing for 200 steps and two are rare, each with its share of tokens."""
    net = Mixture()
    net.bias[6:] = -50.0
    sink = train_mixture(net, tmp_path / "run", 200, every={4: 10, 5: 15})
    seen = {
        expert: sum(check.experts[0].rows[expert] > 0 for check in of(sink, Measurement))
        for expert in range(8)
    }
    assert seen[6] == seen[7] == 0
    assert (seen[4], seen[5]) == (20, 14)
    starving = of(sink, ExpertsStarving)
    assert {tuple(share.expert for share in event.starving) for event in starving} == {("6", "7")}
    assert (starving[0].step, starving[0].container, starving[0].experts) == (3, "experts", 8)
    latest = [e for e in sink.events if isinstance(e, ExpertUsage | ExpertsStarving)][-1]
    assert [share.expert for share in latest.rare] == ["4", "5"]
    assert all(0.0 < share.share < 0.3 / 8 and share.seen > 0.0 for share in latest.rare)
    assert "2 of 8 experts get no tokens: 6 (never any), 7 (never any)" in describe(latest)
    assert "2 of 8 are rare and not dead: 4 (" in describe(latest)


def test_case_18_no_layer_of_an_expert_alarms_over_a_gap(tmp_path: Path) -> None:
    """Rare experts have no gradient in many checks, and neither has one that is left out late."""
    sink = train_mixture(Mixture(), tmp_path / "run", 100, every={6: 10, 7: 3})
    norms = [dict(zip(m.layers, m.norms, strict=True)) for m in of(sink, Measurement)]
    assert sum(check["experts.6.0"] is None for check in norms) == 90
    assert not of(sink, Alarm)
    assert not of(sink, ExpertsStarving)


def test_case_18_an_expert_that_stops_is_starving_and_the_run_has_a_warning(
    tmp_path: Path,
) -> None:
    """Not a problem and not a layer alarm: an observation, with the step of its last token."""
    net, sink = Mixture(), MemorySink()
    with Monitor(net, out=tmp_path / "run", check_every=1, sinks=[sink], verbose=False) as monitor:
        for step in range(60):
            if step == 30:
                net.bias[3] = -50.0
            net.zero_grad()
            loss = net(torch.randn(256, 16)).square().mean()
            loss.backward()
            monitor.step(loss)
    (found,) = of(sink, ExpertsStarving)
    assert [(share.expert, share.since_step) for share in found.starving] == [("3", 29)]
    assert found.step <= 36
    assert not of(sink, Alarm)
    assert of(sink, RunEnd)[-1].status is Status.WARNINGS


def test_case_18_a_balanced_mixture_is_silent(tmp_path: Path) -> None:
    """No word of experts at all, and a healthy run."""
    sink = train_mixture(Mixture(), tmp_path / "run", 60)
    assert not of(sink, ExpertsStarving)
    assert of(sink, RunEnd)[-1].status is Status.HEALTHY


def test_case_18_experts_of_transformers_in_a_dictionary(tmp_path: Path) -> None:
    """Switch Transformers: eight experts of each sparse layer, counted by their names."""
    from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

    shape: dict[str, Any] = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_heads": 2}
    config = SwitchTransformersConfig(
        vocab_size=VOCABULARY,
        num_layers=2,
        num_sparse_encoder_layers=1,
        num_decoder_layers=2,
        num_sparse_decoder_layers=1,
        num_experts=8,
        **shape,
    )
    config.decoder_start_token_id = 0
    torch.manual_seed(0)
    net = SwitchTransformersForConditionalGeneration(config)
    sink = one_check(net, tmp_path / "run", language_loss)
    (check,) = of(sink, Measurement)
    lines = [m for m in of(sink, Manifest)[-1].mechanisms if m.name == "expert_usage"]
    assert [line.state for line in lines] == [MechanismState.ACTIVE]
    assert {found.container for found in check.experts} == set(lines[0].layers)
    assert len(check.experts) == 2
    for found in check.experts:
        assert found.experts == tuple(f"expert_{place}" for place in range(8))
        assert 0 < sum(found.rows) <= 64


def test_case_18_fused_experts_of_transformers_are_unobservable(tmp_path: Path) -> None:
    """Mixtral holds its experts in three-dimensional parameters: the manifest says so."""
    from transformers import MixtralConfig, MixtralForCausalLM

    shape: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 32,
        "num_local_experts": 4,
    }
    net = MixtralForCausalLM(MixtralConfig(vocab_size=VOCABULARY, **shape))
    assert any(p.dim() == 3 for p in net.parameters())
    sink = one_check(net, tmp_path / "run", language_loss)
    lines = [m for m in of(sink, Manifest)[0].mechanisms if m.name == "expert_usage"]
    assert [line.state for line in lines] == [MechanismState.UNOBSERVABLE]
    assert len(lines[0].layers) == 2
    assert not of(sink, Measurement)[0].experts
