"""The tests against vLLM itself run in an environment of their own (`make test-vllm`), and are skipped in any other.

One engine in this process and one server serve all tests, as starting one takes a minute.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

sys.path.append(str(Path(__file__).parent))  # behind: there is a conftest here too

from vllm_common import START, kill

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; the library's own choice is most of the machine
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skipped, with the reason, where vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        for item in items:
            if Path(__file__).parent in Path(item.path).parents:
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed here: make test-vllm"))


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Any]]:
    """serve() -> (address, process) of a server of the shipped policy, named "policy"."""
    from sage_rlvr.models.folders import embedded_policy

    started: list[subprocess.Popen[bytes]] = []
    log = tmp_path_factory.mktemp("server") / "log"

    def start(port: int | None = None) -> tuple[str, subprocess.Popen[bytes]]:
        if port is None:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
        words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(embedded_policy())]
        words += ["--served-model-name", "policy", "--port", str(port), "--host", "127.0.0.1", "--generation-config", "vllm"]
        words += ["--dtype", "float32", "--max-model-len", "64", "--enforce-eager"]
        process = subprocess.Popen(words, stdout=log.open("ab"), stderr=subprocess.STDOUT, start_new_session=True)
        started.append(process)
        address, due = f"http://127.0.0.1:{port}", time.monotonic() + START
        while time.monotonic() < due and process.poll() is None:
            try:
                if httpx2.get(f"{address}/health", timeout=5).is_success:
                    return address, process
            except httpx2.HTTPError:
                time.sleep(1)
        raise AssertionError(f"no server: {log.read_text(errors='replace')[-3000:]}")

    yield start
    for process in started:
        kill(process)
