"""Where data lie: a path, or a data set of the Hugging Face hub, which is fetched once into its cache."""

from __future__ import annotations

from pathlib import Path

from vlmrl.errors import UserError

HUB = "hf://datasets/"


def locate(path: str) -> Path:
    """Return a path as it is; of `hf://datasets/owner/name[@revision]` the folder of its local copy.

    Raises:
        UserError: the hub has no such data set, or does not answer.
    """
    if not path.startswith(HUB):
        return Path(path)
    name, _, revision = path.removeprefix(HUB).partition("@")
    if name.count("/") != 1:
        raise UserError(f"{path}: expected {HUB}owner/name or {HUB}owner/name@revision")
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        snapshot = huggingface_hub.snapshot_download(
            name, repo_type="dataset", revision=revision or None
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: cannot be fetched: {reason:.200}") from error
    return Path(snapshot)


def folder_of(path: str) -> str:
    """Return the folder in which the data at a path are: itself, or that of a file; `path` as in `locate`."""
    data = locate(path)
    return str(data if data.is_dir() else data.parent)
