"""Every exception the suite raises.

A message has four parts: what was asked, what was found, where, and what to do. Each class also
carries its `subject`, the thing it is about, so that a caller need not parse the text.
"""


class OrmasError(Exception):
    """Base of all errors raised by the suite.

    Attributes:
        subject: what the error is about (an option name, a path, a layer pattern).
    """

    def __init__(self, subject: str, message: str) -> None:
        super().__init__(message)
        self.subject = subject

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        # Exceptions cross process boundaries in distributed runs; the default needs one argument.
        return type(self), (self.subject, str(self))


class ConfigError(OrmasError, ValueError):
    """An option has a value that cannot be used."""


class UnknownOptionError(OrmasError, TypeError):
    """An option that does not exist was passed."""


class LayerPatternError(OrmasError, ValueError):
    """A `layers=` pattern matches no layer of the model."""


class RecordExistsError(OrmasError, FileExistsError):
    """The run folder already holds a record."""

    # FileExistsError formats (errno, text) pairs by itself; the message is all there is to show.
    def __str__(self) -> str:
        return str(self.args[0])


class RecordLockedError(OrmasError, RuntimeError):
    """Another writer has the run folder, or has taken it over."""


class RecordFormatError(OrmasError, ValueError):
    """A line of a record cannot be read as what it claims to be."""


class RecordChangedError(OrmasError, RuntimeError):
    """A file was changed while it was being read, so that nothing can be said about it."""


class KeyFileError(OrmasError, ValueError):
    """A file does not hold the key that is needed."""


class MissingExtraError(OrmasError, ImportError):
    """A package of an optional extra is not installed."""


def missing_extra(package: str, extra: str) -> MissingExtraError:
    """Return the error for an adapter whose framework cannot be imported, with the install line."""
    return MissingExtraError(
        package,
        f"This adapter needs the package {package!r}, which cannot be imported here. "
        f"Install it with: pip install 'ormas[{extra}]'",
    )


class CertifyError(OrmasError, ValueError):
    """`certify()` was given something that it cannot prove anything about."""


class CheckpointError(OrmasError, ValueError):
    """There is no checkpoint where one was named."""
