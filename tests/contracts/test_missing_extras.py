"""An adapter without its framework says how to install it."""

import subprocess
import sys

import pytest

EXTRAS = {
    "ormas_lightning": ("lightning", "lightning"),
    "ormas_hf": ("transformers", "hf"),
    "ormas_mlflow": ("mlflow", "mlflow"),
}


@pytest.mark.parametrize("package", EXTRAS)
def test_a_missing_framework_is_an_import_error_with_the_install_line(package: str) -> None:
    """The message names the package that is missing and the pip line of the extra."""
    framework, extra = EXTRAS[package]
    code = (
        f"import sys; sys.modules[{framework!r}] = None\n"
        f"try:\n    import {package}\n"
        "except ImportError as error:\n    print(type(error).__name__, error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("MissingExtraError")
    assert repr(framework) in result.stdout
    assert f"pip install 'ormas[{extra}]'" in result.stdout


def test_the_core_works_without_any_framework() -> None:
    """A plain loop with a Monitor needs none of the optional packages."""
    code = (
        "import sys\n"
        "for name in ('lightning', 'transformers', 'accelerate', 'mlflow', 'sklearn'):\n"
        "    sys.modules[name] = None\n"
        "import tempfile, torch\n"
        "from ormas_core import Monitor, verify_record\n"
        "net, folder = torch.nn.Linear(2, 1), tempfile.mkdtemp()\n"
        "with Monitor(net, out=folder, check_every=1, verbose=False) as monitor:\n"
        "    net(torch.ones(1, 2)).sum().backward()\n"
        "    monitor.step(1.0)\n"
        "print(verify_record(folder).complete)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "True\n"
