"""The tests of the verl adapter run in an environment of their own (`make test-verl`), and are skipped in any other."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
if importlib.util.find_spec("verl") is not None:  # before it is imported
    from verl_common import environment

    os.environ.update({name: value for name, value in environment().items() if name != "PYTHONPATH"})
