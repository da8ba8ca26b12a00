"""Makes the modules that write the documentation importable, as MkDocs does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "generate"))
