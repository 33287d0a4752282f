"""An adapter goes to the Hub: the repository is made if it isn't there, one commit, no optimizer.

No line holds the token or a server's own text.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

from poros.errors import PorosHubError, escape_control
from poros.loading.hub import TRANSPORT_ERROR

_FILES = ("adapter_config.json", "adapter_model.safetensors", "README.md")
_LOGIN = "run `hf auth login`, or set HF_TOKEN, with a token that may write"
_KEPT = "the adapter lies in the folder"


def publish(folder: Path, name: str | None) -> str:
    """Upload an adapter's files.

    Args:
        folder: As `save` wrote it.
        name: ``owner/name``, or a name under the account of the token; None: the folder's name.

    Returns:
        The repository's whole name.

    Raises:
        PorosHubError: The Hub or the network said no.
    """
    wanted = name or folder.resolve().name
    where = f"model {escape_control(wanted)} on the Hub"
    api = HfApi()
    try:
        # An adapter that is there already gets another commit.
        repository = api.create_repo(wanted, repo_type="model", exist_ok=True).repo_id
        api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=list(_FILES),
            commit_message="Adapter trained with Poros",
        )
    except HfHubHTTPError as error:
        raise _refusal(error, where) from None
    except HFValidationError:
        raise PorosHubError(
            "no name for a repository", where=where, remediation="give hub_model_id='owner/name'"
        ) from None
    except OfflineModeIsEnabled:
        raise PorosHubError(
            f"HF_HUB_OFFLINE is set; {_KEPT}", where=where, remediation="unset it and save again"
        ) from None
    except (TRANSPORT_ERROR, OSError, ValueError, LookupError, TypeError) as error:
        raise PorosHubError(
            f"the upload failed ({type(error).__name__}); {_KEPT}",
            where=where,
            remediation=f"check network, login and HF_ENDPOINT ({constants.ENDPOINT}), save again",
        ) from None
    return repository


def _refusal(error: HfHubHTTPError, where: str) -> PorosHubError:
    status = error.response.status_code if error.response is not None else 0
    if status == 409:
        what, mend = "somebody else changed the repository meanwhile", "save again"
    elif status == 401:
        what, mend = "the Hub does not know you", _LOGIN
    elif status == 403:
        what, mend = "the Hub does not let you write there", f"{_LOGIN} under this owner"
    elif status == 404:
        what, mend = "no such owner, or no right to see it", "check hub_model_id, and " + _LOGIN
    elif status == 429 or status >= 500:
        what, mend = "the Hub failed", "try again later"
    else:
        what, mend = "the Hub refused the upload", "check hub_model_id='owner/name'"
    return PorosHubError(f"{what} (HTTP {status}); {_KEPT}", where=where, remediation=mend)
