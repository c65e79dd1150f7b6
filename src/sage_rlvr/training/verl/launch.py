"""`python -m sage_rlvr.verl <verl's own hydra arguments> +sage.method=grpo +sage.guide=branch +sage.guide.ratio=0.3`.

Arguments that begin with `sage.` are parsed by this package (a part by its name and arguments, as in a recipe), all
others by verl's hydra. The fields of verl that a method decides are set from it; a different value on the command line
raises ConfigError.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
import ray
import verl.trainer
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from verl.utils.device import auto_set_device

from sage_rlvr.errors import ConfigError
from sage_rlvr.recipes import Tree, override
from sage_rlvr.training.verl.fields import disagreement, is_spelled
from sage_rlvr.training.verl.objective import Objective, SageNode, fields_of, unproven
from sage_rlvr.training.verl.state import check_resume
from sage_rlvr.training.verl.validation import Settings

FILE_LOG = "VERL_FILE_LOGGER_PATH"  # of verl's logger `file`
CONFIG = str(Path(verl.trainer.__file__).parent / "config")


def split(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The tree of the words `[+]sage.a.b=value`, and the other words. ConfigError for one without a value."""
    tree, rest = Tree(), []
    for word in words:
        key, equals, value = word.partition("=")
        parts = key.lstrip("+").partition("sage.")
        if parts[0] or not parts[1]:
            rest.append(word)
            continue
        if not equals:
            raise ConfigError(f"{word}: the value is missing; write {key}=VALUE")
        tree = override(tree, parts[2], value)
    return dict(tree), rest


def prepare(config: DictConfig, tree: dict[str, Any], named: Sequence[str]) -> Objective:
    """Put the `sage` node into verl's configuration, and the fields that its method decides.

    named: dotted keys that the command sets; ConfigError if one contradicts the method, and for all that
    `Objective.of` refuses.
    """
    there = OmegaConf.to_container(config.get("sage") or OmegaConf.create({}), resolve=True)
    merged = {**there, **tree} if isinstance(there, dict) else tree

    def read(key: str) -> Any:
        return OmegaConf.select(config, key)

    node = SageNode.of(merged)
    if node.passk is not None:
        merged["passk"] = str(Path(node.passk).resolve())  # the actor has a working directory of its own
        Settings.of(node.passk, node.temperatures, read)
    fields, estimator = fields_of(node, read), "algorithm.adv_estimator"
    given = {key: read(key) for key in fields if key in named}
    if node.method is not None and is_spelled(given.get(estimator), node.method):
        given.pop(estimator)
    if conflict := disagreement(fields, given):
        raise ConfigError(f"{conflict}. Remove these, or set them in the method, as in +sage.method.beta=0.01")
    with open_dict(config):
        config.sage = merged
        for key, value in fields.items():
            OmegaConf.update(config, key, value, force_add=True)
    for field in unproven(read):
        print(f"sage: {field} has never been tested with this package; compare a run with guide flat to plain verl first")
    return Objective.of(merged, read)


def runner_class() -> Any:
    """verl's task runner, which registers the shaped trainers in its own process first: an actor that may run on any node."""
    plain = TaskRunnerV1.__ray_metadata__.modified_class

    class SageTaskRunner(plain):  # type: ignore[misc, valid-type]
        def run(self, config: Any) -> Any:
            from sage_rlvr.training.verl.trainer import install  # in the actor's process

            install()
            return super().run(config)

    return ray.remote(SageTaskRunner)


class Placed:
    """verl's task runner with the variable FILE_LOG of this process, which a cluster that already runs does not have.

    here: on this machine, where its files are then written, else wherever Ray puts it.
    """

    def __init__(self, actor: Any, here: bool) -> None:
        self.actor, self.here = actor, here

    def options(self, runtime_env: Mapping[str, Any] | None = None) -> Any:
        """verl's call (nsight), and what places the actor."""
        env = dict(runtime_env or {})
        if (file := os.environ.get(FILE_LOG)) is not None:
            env["env_vars"] = {**env.get("env_vars", {}), FILE_LOG: str(Path(file).resolve())}
        where: dict[str, Any] = {"runtime_env": env} if env else {}
        if self.here:  # no CPU, so that a head without one has a place for it
            node = ray.get_runtime_context().get_node_id()
            where |= {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False), "num_cpus": 0}
        return self.actor.options(**where)

    def remote(self) -> Any:
        """Start the actor. Ray is initialized by now."""
        return self.options().remote()


def launch(config: DictConfig) -> None:
    """Run a prepared configuration to its end."""
    auto_set_device(config)
    validate_config(
        config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
    )
    here = FILE_LOG in os.environ or OmegaConf.select(config, "sage.passk") is not None
    run_ppo(config, task_runner_class=Placed(runner_class(), here))


def main(argv: Sequence[str] | None = None) -> Path | None:
    """Read the words, compose verl's configuration, run. The folder of `sage.passk`, if there is one."""
    tree, rest = split(sys.argv[1:] if argv is None else argv)
    sys.argv = [sys.argv[0], *rest]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # hydra hands refusals on as they are

    @hydra.main(config_path=CONFIG, config_name="ppo_trainer", version_base=None)  # type: ignore[untyped-decorator]  # of verl
    def composed(config: DictConfig) -> None:
        named = [word.partition("=")[0].lstrip("+~") for word in HydraConfig.get().overrides.task]
        check_resume(prepare(config, tree, named), config)  # before Ray, the workers and the model start
        launch(config)
        folders.append(OmegaConf.select(config, "sage.passk"))

    folders: list[str | None] = []
    composed()
    return Path(folders[0]) if folders and folders[0] else None  # without any: hydra only printed, as for --help
