"""A user's script: Lightning shards the parameters by FSDP2; without the callback, and with it."""

from pathlib import Path

from lightning.pytorch.strategies import ModelParallelStrategy
from ranks_support import script_main
from sharded_loops import shard, values
from support import lightning_net, lightning_trainer, loader
from torch.distributed.tensor import DTensor

from ormas_lightning import LightningMonitorCallback

STEPS = 4


class Net(type(lightning_net())):  # type: ignore[misc]
    """The toy network, sharded where Lightning asks for it."""

    def configure_model(self) -> None:
        if not isinstance(self.fc1.weight, DTensor):
            shard(self, self.device_mesh["data_parallel"], columns=False)


def main(folder: Path) -> list[dict[str, list[float]]]:
    """Fit twice, and return the weights of both."""
    weights = []
    callback = LightningMonitorCallback(out=folder / "run", check_every=1, verbose=False)
    for callbacks in ([], [callback]):
        net = Net()
        strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
        trainer = lightning_trainer(folder, callbacks, devices=2, strategy=strategy)
        trainer.fit(net, loader(2 * STEPS))
        assert isinstance(net.fc1.weight, DTensor)
        weights.append(values(net))
    return weights


if __name__ == "__main__":
    script_main(main)
