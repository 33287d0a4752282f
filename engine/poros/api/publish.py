"""An adapter goes to the Hub: the repository is made if it isn't there, one commit, no optimizer.

No line holds the token or a server's own text.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

from poros.errors import escape_control
from poros.hub_errors import (
    no_repository_name,
    upload_broken,
    upload_offline,
    upload_refusal,
)
from poros.loading.hub import TRANSPORT_ERROR

_FILES = ("adapter_config.json", "adapter_model.safetensors", "README.md")


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
        status = error.response.status_code if error.response is not None else 0
        raise upload_refusal(status, where) from None
    except HFValidationError:
        raise no_repository_name(where) from None
    except OfflineModeIsEnabled:
        raise upload_offline(where) from None
    except (TRANSPORT_ERROR, OSError, ValueError, LookupError, TypeError) as error:
        raise upload_broken(type(error).__name__, where, constants.ENDPOINT) from None
    return repository
