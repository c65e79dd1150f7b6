"""How the processes of a launch leave. Needs TRL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")

LEAVING = """
import atexit, sys
from pathlib import Path
import torch
import torch.distributed as dist

def gloo():
    return sum("gloo" in name.read_text() for name in Path("/proc/self/task").glob("*/comm"))

atexit.register(lambda: print("left:", dist.is_initialized(), gloo()))  # registered first, called last
import sage_rlvr.training.trl.trainer
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 1), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
model.trainer = type("Trainer", (), {"model": model})()  # a cycle that holds the group
print("made:", dist.is_initialized(), gloo() > 0)
del model
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="names of threads are read from /proc")
def test_gloos_threads_have_ended_before_the_interpreter_goes_down(tmp_path: Path):
    """Left alone they end now and then a finished run by SIGABRT, the more often the busier the cores."""
    words = [sys.executable, "-c", LEAVING, str(tmp_path / "store")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["made: True True", "left: False 0"], done.stdout
