"""Files that torch wrote: tensors and plain values are read, and nothing in them is run."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

from vlmrl.errors import UserError


def load_tensors(path: Path) -> Any:
    """Return what torch saved, on the CPU.

    Raises:
        UserError: the file is missing, damaged, or a pickle of something else, which is named.
    """
    import torch  # slow to import

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a hostile pickle may raise anything
        text = " ".join(str(error).split())
        if foreign := re.search(r"GLOBAL ([\w.]+)", text):
            text = f"it asks for {foreign[1]}, which could run anything; nothing of it was loaded"
        elif isinstance(
            error, pickle.UnpicklingError
        ):  # torch goes on to advise to load it all the same
            text = "it is a pickle of something else; nothing of it was loaded"
        raise UserError(
            f"{path}: expected tensors and plain values as torch saves them: {text[:200]}"
        ) from error
