"""Define errors that tell the user what is wrong, where, and how to fix it.

Each class sets the exit code of the command line. Any exception that is not a `PeerdgError` is a
bug and ends with code 1 and a traceback.
"""


class PeerdgError(Exception):
    """Base class for all errors that peerdg raises on purpose."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n{self.hint}"


class ConfigError(PeerdgError):
    """Invalid command or configuration, or a resume that does not match the run."""

    exit_code = 2


class RunInUseError(PeerdgError):
    """Another process is using the run folder."""

    exit_code = 3


class OutputError(PeerdgError):
    """Output cannot be written: no permission, a full disk, or a folder that is not empty."""

    exit_code = 4


class DataError(PeerdgError):
    """Images, labels or classes cannot be used."""

    exit_code = 5


class NumericalError(PeerdgError):
    """NaN or infinity in a loss, gradient or weight. `details` go to the failure record."""

    exit_code = 6

    def __init__(
        self, message: str, *, hint: str | None = None, details: dict[str, object] | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.details = details or {}


class DamagedError(PeerdgError):
    """A checkpoint, model or archive is damaged or was rejected."""

    exit_code = 7


class PeerdgWarning(UserWarning):
    """Warning about data, a run or a model that does not stop the work."""


class Stopped(PeerdgError):
    """A run saved its state and stopped early, on a signal or as planned (exit code 0)."""

    def __init__(self, message: str = "Stopped.", *, signal_number: int | None) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.exit_code = 0 if signal_number is None else 128 + signal_number


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether Python, torch or an accelerator ran out of memory."""
    texts = ("DefaultCPUAllocator", "out of memory")
    is_torch = isinstance(error, RuntimeError) and any(text in str(error) for text in texts)
    return is_torch or isinstance(error, MemoryError)
