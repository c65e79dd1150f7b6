"""The scripts of examples/ run, or get as far as a machine without vLLM and GPUs lets them. Needs TRL."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from trl import GRPOTrainer

from sage_rlvr.errors import ConfigError

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str) -> dict[str, Any]:
    """The names that a script defines; its main part does not run."""
    return runpy.run_path(str(EXAMPLES / name))


def start(*command: str, **environment: str) -> subprocess.Popen[str]:
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHON": sys.executable} | environment
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=settings)


def output(*command: str, code: int = 0, **environment: str) -> str:
    process = start(*command, **environment)
    said = process.communicate(timeout=200)[0]
    assert process.returncode == code, said[-3000:]
    return said


def test_an_adapter_is_trained_against_the_model_below_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    log = [line for line in example("trl_lora.py")["main"](str(tmp_path), steps=4, batch=32) if "kl/to_anchor" in line]
    assert "81920 weights trained, by 1 process(es)" in capsys.readouterr().out
    assert len(log) == 4 and log[0]["kl/to_reference"] == pytest.approx(0, abs=1e-6) and log[-1]["kl/to_reference"] > 1e-5
    assert all(0.02 < line["guide/active_frac"] < 0.6 for line in log)


def test_fewer_processes_than_were_launched_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Once the trainer is built, whose processes are accelerate's."""
    built = GRPOTrainer.__init__

    @functools.wraps(built)
    def launched(self: Any, *args: Any, **kwargs: Any) -> None:
        built(self, *args, **kwargs)
        monkeypatch.setenv("WORLD_SIZE", "2")

    monkeypatch.setattr(GRPOTrainer, "__init__", launched)
    with pytest.raises(ConfigError, match=r"2 processes were launched .* accelerate sees 1"):
        example("trl_lora.py")["main"](str(tmp_path), steps=1, batch=32)


def test_the_servers_flags_and_the_trainers_arguments_without_vllm():
    said = output(sys.executable, str(EXAMPLES / "trl_vllm_server.py"), "--model", "some/model", "--dry-run")
    assert "VLLM_SERVER_DEV_MODE=1 vllm serve some/model --tensor-parallel-size 1 " in said
    assert '--logprobs-mode processed_logprobs --weight-transfer-config \'{"backend": "nccl"}\'' in said
    wanted = ["use_vllm = True", "vllm_mode = server", "vllm_server_base_url = http://localhost:8000"]
    assert {*wanted, "vllm_group_port = 51216"} <= set(said.splitlines())


def test_the_flags_of_the_docstring_are_those_that_are_printed():
    module = example("trl_vllm_server.py")
    written = module["__doc__"].split("trains, whose")[0].split("samples:")[1].split("On the machine")[0]
    assert written.replace("\\\n", " ").split() == module["server_command"]("MODEL", 2).split()


def test_with_a_server_everything_up_to_vllm_itself_is_accepted(tmp_path: Path, tiny_policy: Path):
    """SageTrainer refuses nothing of these arguments: what stops the script is that vLLM is not installed."""
    pytest.importorskip("math_verify")
    if importlib.util.find_spec("vllm"):
        pytest.skip("vLLM is installed: the script would wait for its server")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(64)))
    command = [sys.executable, str(EXAMPLES / "trl_vllm_server.py"), "--model", str(tiny_policy), "--data", str(rows)]
    said = output(*command, "--out", str(tmp_path / "out"), code=1, HF_HOME=str(tmp_path / "cache"))
    assert "ImportError: vLLM is not available" in said


def test_the_multinode_script_says_what_it_needs():
    script = str(EXAMPLES / "multinode.sh")
    output("bash", "-n", script)
    machine = {"HEAD": "127.0.0.1", "MACHINES": "2", "MACHINE": "0", "GPUS": "1"}
    assert "usage:" in output("bash", script, code=2, **machine)
    assert "the address of machine 0" in output("bash", script, "train.py", code=1, **machine | {"HEAD": ""})


def free_port() -> str:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])


def on_machines(*script: str, machines: int = 2, processes: int = 1, **more: str) -> list[str]:
    """What examples/multinode.sh says of a script, once a machine, on this one."""
    shared = {"ACCELERATE_USE_CPU": "true", "GLOO_SOCKET_IFNAME": "lo", "HEAD": "127.0.0.1", "PORT": free_port()}
    shared |= {"MACHINES": str(machines), "GPUS": str(processes)} | more
    started = [start("bash", str(EXAMPLES / "multinode.sh"), *script, MACHINE=str(n), **shared) for n in range(machines)]
    said = [process.communicate(timeout=250)[0] for process in started]
    assert [process.returncode for process in started] == [0] * machines, "\n".join(said)[-4000:]
    return said


@pytest.mark.slow
@pytest.mark.parametrize(("machines", "processes"), [(2, 1), (1, 2)])
def test_two_processes_train_one_adapter(machines: int, processes: int):
    """A world of two, or the trainer itself stops."""
    said = on_machines(str(EXAMPLES / "trl_lora.py"), "--steps", "2", "--batch", "16", machines=machines, processes=processes)
    assert all("81920 weights trained, by 2 process(es)" in text for text in said)


@pytest.mark.slow
def test_the_script_of_one_machine_trains_on_two():
    said = on_machines(str(EXAMPLES / "trl_minimal.py"), "--steps", "2", "--batch", "16")
    assert "'train_loss'" in "".join(said)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fsdp2", "zero2", "zero3"])
def test_a_configuration_of_sharding_reaches_the_scripts_of_all_machines(name: str, tmp_path: Path):
    """As accelerate's plugin reads it there: what it asks for, on a CPU, where accelerate itself would not shard."""
    kind = "FullyShardedDataParallelPlugin" if name == "fsdp2" else "DeepSpeedPlugin"
    if kind == "DeepSpeedPlugin" and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed here: make test-sharded")
    read = "plugin.fsdp_version, plugin.reshard_after_forward" if name == "fsdp2" else "plugin.zero_stage"
    (tmp_path / "script.py").write_text(
        f"import os\nfrom accelerate.utils import {kind}\nplugin = {kind}()\n"
        f"print('plugin', {read}, 'of', os.environ['WORLD_SIZE'], os.environ['RANK'])\n"
    )
    said = on_machines(str(tmp_path / "script.py"), CONFIG=str(EXAMPLES / f"{name}.yaml"))
    shown = {"fsdp2": "2 True", "zero2": "2", "zero3": "3"}[name]
    assert all(f"plugin {shown} of 2 {rank}" in text for rank, text in enumerate(said)), said


@pytest.mark.slow
def test_the_same_script_under_torchrun():
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    script = [str(EXAMPLES / "trl_lora.py"), "--steps", "1", "--batch", "16"]
    said = output(*launch, *script, ACCELERATE_USE_CPU="true", GLOO_SOCKET_IFNAME="lo")
    assert "81920 weights trained, by 2 process(es)" in said


@pytest.mark.parametrize(("page", "word"), [("README.md", "SageTrainer"), ("docs/howto/trl.md", "PassAtK(")])
def test_the_script_of_a_page_runs_as_printed(page: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With a tiny model in the place of the one that it names; the files are found by the model's name, as on the Hub."""
    import re
    import string

    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    text = (EXAMPLES.parent / page).read_text(encoding="utf-8")
    (script,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if word in block]
    folder = tmp_path / "HuggingFaceTB" / "SmolLM2-135M-Instruct"
    characters = Tokenizer(models.WordLevel({c: i for i, c in enumerate(["<eos>", *string.printable])}, unk_token="<eos>"))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=characters, eos_token="<eos>", pad_token="<eos>").save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(string.printable) + 1, eos_token_id=0, pad_token_id=0, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(script)
    assert "'train_loss'" in output(sys.executable, "script.py", PYTHONPATH=str(EXAMPLES.parent / "src"), HF_HUB_OFFLINE="1")
    for file in re.findall(r"out/passk/[\w.-]+\.jsonl", text):  # of the command that compares them
        assert (tmp_path / file).is_file(), file
