"""Errors carry their subject, read as written, and cross process boundaries."""

import pickle

import pytest

from ormas_core import errors
from ormas_core.errors import OrmasError, missing_extra

CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, OrmasError)
]


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_keeps_subject_and_message(cls: type[OrmasError]) -> None:
    """Also through pickle, which distributed runs send exceptions by."""
    error = cls("the subject", "What was asked, what was found.")
    for found in (error, pickle.loads(pickle.dumps(error))):  # noqa: S301 - its own bytes
        assert type(found) is cls
        assert found.subject == "the subject"
        assert str(found) == "What was asked, what was found."


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("CertifyError", ValueError),
        ("CheckpointError", ValueError),
        ("ConfigError", ValueError),
        ("UnknownOptionError", TypeError),
        ("LayerPatternError", ValueError),
        ("RecordExistsError", FileExistsError),
        ("RecordChangedError", RuntimeError),
        ("KeyFileError", ValueError),
        ("RecordFormatError", ValueError),
        ("MissingExtraError", ImportError),
    ],
)
def test_an_error_is_of_the_kind_python_raises(name: str, base: type[Exception]) -> None:
    """So that code which knows nothing of this package can catch it."""
    assert issubclass(getattr(errors, name), (base, OrmasError))
    assert base in getattr(errors, name).__mro__
    assert len(CLASSES) == 12


def test_a_missing_extra_says_how_to_install_it() -> None:
    """The package that is missing, and the whole command."""
    error = missing_extra("lightning", "hf")
    assert error.subject == "lightning"
    assert str(error) == (
        "This adapter needs the package 'lightning', which cannot be imported here. "
        "Install it with: pip install 'ormas[hf]'"
    )
