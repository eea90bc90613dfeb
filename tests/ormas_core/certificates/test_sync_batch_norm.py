"""Synchronised batch norm, which has kernels for GPUs only: a stand-in node, and the real one."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist
from certificate_support import CHANNELS, IMAGES, conv_net, found, sgd
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules._functions import SyncBatchNorm

from ormas_core import certify
from ormas_core.certificates import masks, signs
from ormas_core.certificates.graph import SYNC_BATCH_NORM, Node
from ormas_core.certificates.prover import rule_of
from ormas_core.certificates.rules import RULES
from ormas_core.certificates.signs import Signs

SHAPE: Final = (2, 4, 3, 3)


def _node() -> Node:
    """Return the node that torch makes: input, scale and shift, then the running statistics."""
    return Node(
        name=SYNC_BATCH_NORM,
        inputs=((0, 0), (1, 0), (2, 0), None, None),
        in_shapes=(SHAPE, (4,), (4,), SHAPE, SHAPE),
        out_shapes=(SHAPE,),
        dtype="float32",
        device="cuda",
        attrs=dict.fromkeys(RULES[SYNC_BATCH_NORM].settings, 1e-5),
    )


def _facts(*zero: int, negative: tuple[int, ...] = ()) -> Signs:
    every = torch.arange(4)
    nothing = masks.none((4,))
    flags = torch.isin(every, torch.tensor(zero, dtype=torch.long)).numpy()
    below = torch.isin(every, torch.tensor(negative, dtype=torch.long)).numpy()
    return signs.facts(masks.union_of((4,), [flags]), masks.union_of((4,), [below]), nothing)


def test_the_rule_closes_what_batch_norm_closes() -> None:
    """Zero input (0) or zero scale (1): the output is the shift, and no gradient goes up for 1."""
    node = _node()
    rule = rule_of(node)
    assert rule is not None
    channel = masks.union_of(SHAPE, [(torch.arange(4) == 0).numpy().reshape(1, 4, 1, 1)])
    made = Signs(channel, channel, channel)
    rest = [signs.unknown(SHAPE)] * 2
    operands = [made, _facts(1), _facts(negative=(0, 1, 2)), *rest]
    (out,) = rule.forward(node, operands)
    assert out.neg.dense()[0, :, 0, 0].tolist() == [True, True, False, False]
    assert not out.zero.dense().any()
    masked = rule.backward(node, operands, [masks.none(SHAPE)])
    assert masked[0].dense()[0, :, 0, 0].tolist() == [False, True, False, False]
    assert masked[1].dense().tolist() == [True, False, False, False]
    assert not masked[2].dense().any()


class _Synchronised(nn.BatchNorm2d):
    """The function of `nn.SyncBatchNorm`, which the module itself calls on several ranks only."""

    def forward(self, x: Tensor) -> Tensor:
        statistics: tuple[Any, ...] = (self.running_mean, self.running_var)
        group = dist.group.WORLD
        return SyncBatchNorm.apply(x, self.weight, self.bias, *statistics, self.eps, 0.1, group, 1)


@pytest.fixture
def _group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="its kernels exist on a GPU only")
@pytest.mark.usefixtures("_group")
def test_the_real_function_is_certified() -> None:
    """Planted channels before torch's own function are certified, and get no gradient."""
    net = conv_net()
    norm = _Synchronised(8)
    norm.load_state_dict(net.norm.state_dict())
    net.norm = norm
    net.cuda()
    loss = functional.cross_entropy(
        net(torch.randn(IMAGES, device="cuda")), torch.tensor([0, 1], device="cuda")
    )
    assert found(certify(net, sgd(net), loss)) == CHANNELS
    loss.backward()
    for parameter in (net.layer.weight, net.norm.weight, net.norm.bias):
        assert parameter.grad is not None
        assert not parameter.grad[3].any()
