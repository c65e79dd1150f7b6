"""What is stored in docs/results, rendered anew by today's words.

python -m sage_rlvr.render.stored docs/results     writes every summary.md there
"""

from __future__ import annotations

import sys
from pathlib import Path

from sage_rlvr.render.build import summary_page
from sage_rlvr.runs import write_text_atomic


def main(root: Path) -> None:
    """summary.md of every folder with a summary.json."""
    for path in sorted(root.glob("*/summary.json")):
        write_text_atomic(path.with_suffix(".md"), summary_page(path.parent).markdown())


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results"))
