"""A user's script: transformers shards the model by FSDP2; without the callback, and with it."""

from pathlib import Path

import torch.distributed as dist
from causal_support import tiny_llama, token_rows
from ranks_support import script_main
from sharded_loops import values
from support import hf_arguments, hf_trainer
from torch.distributed.tensor import DTensor
from transformers import LlamaForCausalLM
from transformers.distributed import DistributedConfig

from ormas_hf import HFMonitorCallback

STEPS = 4


def main(folder: Path) -> list[dict[str, list[float]]]:
    """Train twice, and return the weights of both."""
    weights = []
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        tiny_llama().save_pretrained(folder / "model")
    dist.barrier()
    callback = HFMonitorCallback(out=folder / "run", check_every=1, verbose=False)
    for callbacks in ([], [callback]):
        model = LlamaForCausalLM.from_pretrained(
            folder / "model", distributed_config=DistributedConfig(fsdp_size=2)
        )
        assert isinstance(model.lm_head.weight, DTensor)
        arguments = hf_arguments(
            folder / "hf",
            per_device_train_batch_size=2,
            max_steps=STEPS,
            max_grad_norm=1.0,
        )
        hf_trainer(model, arguments, callbacks, train_dataset=token_rows()).train()
        weights.append(values(model))
    return weights


if __name__ == "__main__":
    script_main(main)
