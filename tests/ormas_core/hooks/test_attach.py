"""The forward hooks of a sampled step."""

import copy
import io

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_globals
from torch.utils.checkpoint import checkpoint

from ormas_core.hooks.attach import ForwardWatch


def watch_of(net: nn.Module) -> ForwardWatch:
    modules = [(name or "root", module) for name, module in net.named_modules()]
    return ForwardWatch(modules, [name for name, _ in modules])


def net_with_inplace_relu() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 3)
    )


def gradients(net: nn.Module, x: Tensor, watch: ForwardWatch | None) -> list[Tensor]:
    net.zero_grad()
    if watch is not None:
        watch.attach()
    net(x).square().sum().backward()
    if watch is not None:
        watch.detach()
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def test_gradients_are_unchanged_to_the_bit_and_maxima_precede_the_inplace_relu() -> None:
    """In-place activations neither crash nor overwrite what is measured."""
    net, x = net_with_inplace_relu(), torch.randn(2, 1, 8, 8)
    watch = watch_of(net)
    with_watch = gradients(net, x, watch)
    without = gradients(net, x, None)
    assert all(torch.equal(a, b) for a, b in zip(with_watch, without, strict=True))
    normed = net[1](net[0](x))
    assert watch.channel_max["1"].tolist() == pytest.approx(normed.amax((0, 2, 3)).tolist())


def test_nothing_is_put_on_modules_even_while_attached() -> None:
    """A copy and a whole-model save in the middle of a sampled step hold nothing of ours."""
    net = net_with_inplace_relu()
    watch = watch_of(net)
    watch.attach()
    try:
        loss = net(torch.randn(2, 1, 8, 8)).sum()
        for module in net.modules():
            assert not module._forward_hooks
            assert not module._forward_pre_hooks
            assert not module._backward_hooks
        copy.deepcopy(net)
        buffer = io.BytesIO()
        torch.save(net, buffer)
        assert b"ormas" not in buffer.getvalue()
        loss.backward()
    finally:
        watch.detach()
    assert not module_globals._global_forward_hooks


def test_validation_between_steps_is_not_observed() -> None:
    """Forward passes without gradients leave no trace."""
    net = net_with_inplace_relu()
    watch = watch_of(net)
    watch.attach()
    with torch.no_grad():
        net(torch.randn(2, 1, 8, 8))
    watch.detach()
    assert not watch.order
    assert not watch.channel_max


def test_order_is_that_of_completed_calls() -> None:
    """The root completes last, so it is first going backward."""
    net = net_with_inplace_relu()
    watch = watch_of(net)
    gradients(net, torch.randn(2, 1, 8, 8), watch)
    assert sorted(watch.order, key=watch.order.__getitem__) == ["0", "1", "2", "3", "root"]


def test_maxima_combine_over_micro_batches() -> None:
    """Two forward passes give the larger maximum of each channel."""
    net = nn.Linear(2, 2, bias=False)
    net.weight.data = torch.eye(2)
    watch = watch_of(net)
    watch.attach()
    net(torch.tensor([[1.0, -5.0]]))
    net(torch.tensor([[-3.0, 2.0]]))
    watch.detach()
    assert watch.channel_max["root"].tolist() == [1.0, 2.0]


def test_output_gradients_are_the_real_ones() -> None:
    """The peak noted is the largest gradient element at the output."""
    net = nn.Linear(3, 2)
    watch = watch_of(net)
    watch.attach()
    (net(torch.ones(1, 3)) * torch.tensor([2.0, -7.0])).sum().backward()
    watch.detach()
    assert watch.output_peak["root"].item() == 7.0


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_works(reentrant: bool) -> None:
    """Recomputation neither fails nor changes gradients."""
    net, x = net_with_inplace_relu(), torch.randn(2, 1, 8, 8, requires_grad=True)
    watch = watch_of(net)
    watch.attach()
    checkpoint(net, x, use_reentrant=reentrant).square().sum().backward()
    watch.detach()
    assert set(watch.order) == (set() if reentrant else {"0", "1", "2", "3", "root"})
    assert watch.called >= {"0", "1", "2", "3"}
    seen = [p.grad.clone() for p in net.parameters()]
    assert not watch.failures
    assert set(watch.channel_max) == {"0", "1", "3"}
    expected = gradients(net, x, None)
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


def test_functorch_transforms_are_left_alone() -> None:
    """Batched tensors of vmap do not leak out of it."""
    net = nn.Linear(2, 2)
    watch = watch_of(net)
    watch.attach()
    torch.func.vmap(net)(torch.ones(3, 2))
    watch.detach()
    assert not watch.failures
    assert not watch.channel_max


def test_double_backward_works() -> None:
    """A gradient penalty goes through the hooks without a graph of theirs."""
    net = nn.Linear(2, 1)
    watch = watch_of(net)
    x = torch.ones(1, 2, requires_grad=True)
    watch.attach()
    (grad,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    grad.square().sum().backward()
    watch.detach()
    assert not watch.failures
    assert not watch.output_peak["root"].requires_grad


def test_outputs_of_every_shape_are_taken() -> None:
    """Tuples, mappings, empty batches, integers and strings pass through unharmed."""

    class Odd(nn.Module):
        def forward(self, x: Tensor) -> dict[str, object]:
            return {"a": x * 2, "b": "text", "c": torch.ones(2, dtype=torch.long), "d": (x,)}

    net = nn.Sequential(nn.LSTM(2, 3), Odd())
    watch = watch_of(nn.ModuleList([net[0], net[1]]))
    watch.attach()
    out, _ = net[0](torch.randn(1, 1, 2))
    net[1](out)
    net[1](torch.ones(0, 2, requires_grad=True) * 1)["a"].sum().backward()
    watch.detach()
    assert not watch.failures


def test_a_failure_in_a_hook_is_kept_from_the_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's pass goes on; the error is there to be reported."""

    def broken(*args: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("ormas_core.hooks.attach.channel_maxima", broken)
    net = nn.Linear(2, 2)
    watch = watch_of(net)
    watch.attach()
    assert net(torch.ones(1, 2)).shape == (1, 2)
    watch.detach()
    assert watch.failures == {"root": "RuntimeError: boom"}


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_jit_tracing_is_not_disturbed() -> None:
    """Tracing a model while hooks are attached records no foreign operations."""
    net = nn.Linear(2, 2)
    watch = watch_of(net)
    plain = str(torch.jit.trace(net, torch.ones(1, 2)).graph)
    watch.attach()
    traced = str(torch.jit.trace(net, torch.ones(1, 2)).graph)
    watch.detach()
    assert traced.count("aten::") == plain.count("aten::")
