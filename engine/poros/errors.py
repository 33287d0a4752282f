"""Every error a user can cause, and the exit code each one ends a command with.

PorosError                      1   a bug of ours: the only case that shows a traceback
├── PorosConfigError            2   config or usage
├── PorosDataError              3   training data
├── PorosModelError             4   model, tokenizer or adapter files
│   └── PorosArchNotValidatedError
├── PorosHubError               5   Hub, network, authentication
├── PorosResumeError            6   checkpoint refused
├── PorosOutputError            7   output folder locked or unwritable
├── PorosStorageError           8   storage full or failing
├── PorosHostMemoryError        9   host memory
├── PorosOOMError              10   device memory
├── PorosDeviceLostError       11   device lost or in a sticky error
├── PorosNonFiniteError        12   NaN or infinity in a loss or a gradient
└── PorosParityError           13   parity or self-check failed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

DOCS = "docs/errors.md"

INTERRUPTED = 130
"""Exit code after SIGINT: 128 + the signal's number."""
TERMINATED = 143
"""Exit code after SIGTERM."""
HUNG_UP = 129
"""Exit code after SIGHUP."""


class PorosError(Exception):
    """Base of all errors: what happened, where, and how to mend it, each in one line.

    Args:
        message: What is wrong, without a full stop.
        where: File, line, key or tensor it is about.
        remediation: The change or the command that mends it.
    """

    code: ClassVar[str] = "E-internal"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, where: str = "", remediation: str = "") -> None:
        """Keep the parts apart, so that the app and JSON can show them apart."""
        self.message = message
        self.where = where
        self.remediation = remediation
        super().__init__(message)

    @property
    def type(self) -> str:
        """The class's name, as JSON carries it."""
        return type(self).__name__

    @property
    def doc_url(self) -> str:
        """The section of the documentation about this kind of error."""
        return f"{DOCS}#{self.code.lower()}"

    def __str__(self) -> str:
        """``what, where -> how to fix`` on one line; control characters escaped."""
        what = f"{self.message}, {self.where}" if self.where else self.message
        line = f"{what} -> {self.remediation}" if self.remediation else what
        return escape_control(line)

    def line(self) -> str:
        """The line that goes to stderr."""
        return f"poros: error[{self.code}]: {self}"

    def lines(self) -> list[str]:
        """All lines for stderr: one, unless several problems were found at once."""
        return [self.line()]

    def record(self) -> dict[str, Any]:
        """Its parts by name, as ``--json`` has them."""
        return {
            "type": self.type,
            "code": self.code,
            "exit_code": self.exit_code,
            "message": self.message,
            "where": self.where,
            "remediation": self.remediation,
            "doc_url": self.doc_url,
        }


def escape_control(text: str) -> str:
    r"""Escape what would break a line or drive a terminal; a newline stays visible as ``\n``."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class PorosConfigError(PorosError):
    """A config, a flag or an environment variable is wrong; all its problems at once.

    Attributes:
        problems: One error for each problem when there are several, else empty.
        keys: The settings it is about.
        change: Values by key that mend it; None: none is known. The app offers them.
    """

    code = "E-config"
    exit_code = 2
    problems: tuple[PorosConfigError, ...] = ()
    keys: tuple[str, ...] = ()
    change: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, problems: Sequence[PorosConfigError]) -> PorosConfigError:
        """The one problem itself, or an error that carries them all."""
        if len(problems) == 1:
            return problems[0]
        error = cls(f"{len(problems)} problems")
        error.problems = tuple(problems)
        return error

    def __str__(self) -> str:
        """The problem; several stand one after the other on the line."""
        if not self.problems:
            return super().__str__()
        return f"{self.message}: " + "; ".join(str(problem) for problem in self.problems)

    def lines(self) -> list[str]:
        """One line for each problem."""
        return [problem.line() for problem in self.problems] or [self.line()]

    def record(self) -> dict[str, Any]:
        """Its parts, and those of each problem if there are several."""
        problems = [problem.record() for problem in self.problems]
        return super().record() | ({"problems": problems} if problems else {})


class PorosDataError(PorosError):
    """The training data can't be read or holds nothing to train on."""

    code = "E-data"
    exit_code = 3


class PorosModelError(PorosError):
    """Files of a model, a tokenizer or an adapter are wrong."""

    code = "E-model"
    exit_code = 4


class PorosArchNotValidatedError(PorosModelError):
    """The model's family is not in the table."""

    code = "E-architecture"


class PorosHubError(PorosError):
    """The Hub or the network said no."""

    code = "E-hub"
    exit_code = 5


class PorosResumeError(PorosError):
    """A checkpoint is damaged, or belongs to another run."""

    code = "E-resume"
    exit_code = 6


class PorosOutputError(PorosError):
    """The output folder is locked, taken or unwritable."""

    code = "E-output"
    exit_code = 7


class PorosStorageError(PorosError):
    """The disk is full or failed."""

    code = "E-storage"
    exit_code = 8


class PorosHostMemoryError(PorosError):
    """The host has too little memory."""

    code = "E-host-memory"
    exit_code = 9


class PorosOOMError(PorosError):
    """The device has too little memory.

    Attributes:
        phase: What it was in, such as ``forward`` or ``plan``; empty: unknown.
        asked_bytes: What was asked for, or is needed; 0: unknown.
        in_use_bytes: What was in use; 0: unknown.
        cap_bytes: The most there is; 0: unknown.
        setting: Settings computed or tried to fit, as a config has them; empty: none is known.
    """

    code = "E-device-memory"
    exit_code = 10

    def __init__(
        self,
        message: str,
        *,
        where: str = "",
        remediation: str = "",
        phase: str = "",
        asked_bytes: int = 0,
        in_use_bytes: int = 0,
        cap_bytes: int = 0,
        setting: str = "",
    ) -> None:
        """Keep the sizes beside the words."""
        super().__init__(message, where=where, remediation=remediation)
        self.phase, self.setting = phase, setting
        self.asked_bytes, self.in_use_bytes, self.cap_bytes = asked_bytes, in_use_bytes, cap_bytes

    @property
    def sizes(self) -> dict[str, str | int]:
        """The attributes of its own by name, for events and JSON."""
        names = ("phase", "asked_bytes", "in_use_bytes", "cap_bytes", "setting")
        return {name: getattr(self, name) for name in names}

    def record(self) -> dict[str, Any]:
        """Its parts, and the sizes."""
        return super().record() | {"memory": self.sizes}


class PorosDeviceLostError(PorosError):
    """The device is gone, or refuses all further work."""

    code = "E-device-lost"
    exit_code = 11


class PorosNonFiniteError(PorosError):
    """A loss or a gradient is NaN or infinite."""

    code = "E-non-finite"
    exit_code = 12


class PorosParityError(PorosError):
    """Two runs that must have equal bytes have not."""

    code = "E-parity"
    exit_code = 13
