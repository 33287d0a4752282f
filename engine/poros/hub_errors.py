"""What is said when the Hub, or the way to it, says no: one line each, without its own text."""

from __future__ import annotations

from collections.abc import Sequence

from poros.errors import PorosHubError, PorosModelError

LOGIN = "run `hf auth login`, or set HF_TOKEN"
BUSY = "try again later; what was fetched so far is kept"
BROKEN = "check the network and run again: the download resumes where it stopped"
UNREACHABLE = "check the network and run again, or give the folder of a copy"
OUTAGES = (BUSY, BROKEN, UNREACHABLE)
"""The ways out where the Hub said nothing of the model; a copy that is here may do."""

_WRITE = f"{LOGIN}, with a token that may write"
_KEPT = "the adapter lies in the folder"

_NO_NAME = "the Hub can't be reached: its address is not found, as where there is no network"
_BROKE = "the connection to the Hub broke off"
_SILENT = "the Hub can't be reached: no answer in time"
_NO_WAY = {
    "gaierror": _NO_NAME,
    "ConnectionRefusedError": "the Hub can't be reached: the connection was refused",
    "ConnectionResetError": _BROKE,
    "RemoteDisconnected": _BROKE,
    "IncompleteRead": _BROKE,
    "RemoteProtocolError": _BROKE,
    "TimeoutError": _SILENT,
    "ConnectTimeout": _SILENT,
    "ReadTimeout": _SILENT,
    "SSLCertVerificationError": "the Hub can't be reached: its certificate is not trusted here",
    "cut short": _BROKE,
}
"""By the class of the error."""

GATED, NO_REPOSITORY, NO_REVISION = "GatedRepo", "RepoNotFound", "RevisionNotFound"
"""What the Hub's header ``X-Error-Code`` says."""


def refusal(
    status: int, code: str, name: str, revision: str | None, endpoint: str
) -> PorosHubError:
    """The error for an answer that is none.

    Args:
        status: Of HTTP.
        code: The Hub's own word for it; empty: none.
        name: The repository.
        revision: The one that was asked for; None: the default branch.
        endpoint: The Hub's address.
    """
    where = f"model {name}" + (f" at revision {revision}" if revision else "")
    if code == GATED:
        return PorosHubError(
            f"gated: its owner wants you to accept terms (HTTP {status})",
            where=where,
            remediation=f"open {endpoint}/{name} and accept them, then {LOGIN}",
        )
    if code == NO_REVISION:
        return PorosHubError(
            f"no revision {revision!r} (HTTP {status})",
            where=where,
            remediation=f"see {endpoint}/{name}/commits/main",
        )
    if code == NO_REPOSITORY or status == 404:
        return PorosHubError(
            f"no such model on the Hub, or it is private (HTTP {status})",
            where=where,
            remediation=f"check the name; for a private model {LOGIN}",
        )
    if status in (401, 403):
        return PorosHubError(
            f"the Hub refuses access (HTTP {status})",
            where=where,
            remediation=f"{LOGIN}; the token must be allowed to read this model",
        )
    if is_outage(status):
        return PorosHubError(f"the Hub failed (HTTP {status})", where=where, remediation=BUSY)
    return PorosHubError(
        f"the Hub answered with HTTP {status}",
        where=where,
        remediation=f"check the name, the proxy and HF_ENDPOINT ({endpoint})",
    )


def not_the_hubs(kind: str, where: str, endpoint: str) -> PorosHubError:
    """Somebody else answered: a proxy's page, say; `kind` is the error's class."""
    return PorosHubError(
        f"the answer is not the Hub's ({kind})",
        where=where,
        remediation=f"check the proxy and HF_ENDPOINT ({endpoint})",
    )


def kind_of(error: BaseException) -> str:
    """The class of what went wrong at the bottom of an error of the transport, if it is known."""
    kinds: list[str] = []
    inner: BaseException | None = error
    while inner is not None:
        kinds.append(type(inner).__name__)
        reason = getattr(inner, "reason", None)
        inner = reason if isinstance(reason, Exception) else inner.__cause__ or inner.__context__
    return next((kind for kind in kinds if kind in _NO_WAY), kinds[-1])


def unreachable(kind: str, where: str, *, fetching: bool = False) -> PorosHubError:
    """The error where nobody answered, or not to the end.

    Args:
        kind: As `kind_of` names it: the text of an error may hold what was sent.
        where: Of whom was asked.
        fetching: A download had begun.
    """
    return PorosHubError(
        _NO_WAY.get(kind, f"the Hub can't be reached, or the connection broke ({kind})"),
        where=where,
        remediation=BROKEN if fetching else UNREACHABLE,
    )


def upload_refusal(status: int, where: str) -> PorosHubError:
    """The error for an upload that the Hub answers with an HTTP status."""
    if status == 409:
        what, mend = "somebody else changed the repository meanwhile", "save again"
    elif status == 401:
        what, mend = "the Hub does not know you", _WRITE
    elif status == 403:
        what, mend = "the Hub does not let you write there", f"{_WRITE} under this owner"
    elif status == 404:
        what, mend = "no such owner, or no right to see it", f"check hub_model_id, and {_WRITE}"
    elif is_outage(status):
        what, mend = "the Hub failed", "try again later"
    else:
        what, mend = "the Hub refused the upload", "check hub_model_id='owner/name'"
    return PorosHubError(f"{what} (HTTP {status}); {_KEPT}", where=where, remediation=mend)


def upload_broken(kind: str, where: str, endpoint: str) -> PorosHubError:
    """Nobody answered an upload, or not to the end; `kind` is the error's class."""
    return PorosHubError(
        f"the upload failed ({kind}); {_KEPT}",
        where=where,
        remediation=f"check network, login and HF_ENDPOINT ({endpoint}), save again",
    )


def upload_offline(where: str) -> PorosHubError:
    """Nothing may go to the network."""
    return PorosHubError(
        f"HF_HUB_OFFLINE is set; {_KEPT}", where=where, remediation="unset it and save again"
    )


def no_repository_name(where: str) -> PorosHubError:
    """The name is none that a repository can have."""
    return PorosHubError(
        "no name for a repository", where=where, remediation="give hub_model_id='owner/name'"
    )


def is_outage(status: int) -> bool:
    """Whether trying again later may help."""
    return status == 429 or status >= 500


def refuse_pickles(name: str, files: Sequence[str]) -> None:
    """Refuse a repository whose weights are no safetensors.

    Raises:
        PorosModelError: There are none.
    """
    if any(file.endswith(".safetensors") for file in files):
        return
    pickles = [file for file in files if file.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    held = f"only pickles ({', '.join(pickles)}); Poros never unpickles" if pickles else "at all"
    raise PorosModelError(
        f"no safetensors, {held}" if pickles else f"no safetensors {held}",
        where=f"model {name} on the Hub",
        remediation="take another revision or a repository that has safetensors",
    )
