"""Manual optimization at its edges: what is said of layers and losses that are off for a while."""

from pathlib import Path

from lightning_support import Gan, make, of
from support import lightning_trainer, loader

from ormas_core import Manifest


def test_layers_that_another_optimizers_turn_switches_off_are_not_said_to_be_frozen(
    tmp_path: Path,
) -> None:
    """`toggle_optimizer` takes `requires_grad` from them for the time of one update."""
    callback, sink = make(tmp_path)
    lightning_trainer(tmp_path, [callback]).fit(Gan(gen_every=2), loader(30))
    said = [line for manifest in of(sink, Manifest) for line in manifest.mechanisms]
    assert not [line for line in said if line.name == "gradient_norms" and line.reason]
