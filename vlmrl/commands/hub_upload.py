"""Upload an exported folder to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HFValidationError, HTTPError
from huggingface_hub.utils import validate_repo_id

from vlmrl.errors import UserError

__all__ = ["require_token", "upload"]


def require_token(repo: str) -> None:
    """Refuse a name that the hub does not allow, and an upload without a token.

    Raises:
        UserError: one line that says what to do.
    """
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UserError(f"export --push: {str(error).splitlines()[0]}") from error
    if not huggingface_hub.get_token():
        raise UserError(
            f"export --push {repo}: there is no token for the hub: run `hf auth login`, or set HF_TOKEN"
        )


def upload(folder: Path, repo: str) -> None:
    """Upload the files of `folder`, none of its folders; a repository that is not there is made private.

    Raises:
        UserError: the hub cannot be reached or refuses.
    """
    files = sorted(path.name for path in folder.iterdir() if path.is_file())
    api = huggingface_hub.HfApi()
    try:
        api.create_repo(repo, private=True, exist_ok=True)
        api.upload_folder(repo_id=repo, folder_path=folder, allow_patterns=files)
    except (OSError, HTTPError) as error:  # the hub's own errors are one of the two
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"export --push {repo}: {reason}; the files are in {folder}") from error
