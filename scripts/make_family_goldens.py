"""Write the goldens of every family: what transformers computes with tiny seeded models.

    pip install torch transformers safetensors && python scripts/make_family_goldens.py [CASE ...]

Nothing is downloaded. `tests/backends/test_families.py` reads them, and says, where transformers
is installed, whether they are still what it computes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from family_cases import SOURCES, save_case, transformers_case


def main() -> None:
    for name in sys.argv[1:] or SOURCES:
        with tempfile.TemporaryDirectory() as folder:
            case = transformers_case(name, Path(folder))
        save_case(case)
        print(f"{name:14} {len(case.shapes):3} tensors, logits' deviation {case.logits.std():.2f}")


if __name__ == "__main__":
    main()
