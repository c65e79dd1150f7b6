"""Write the logs in logs/ with the programs that own the formats: python write_logs.py PROGRAM, in an environment with that
program.

Versions: lm_eval 0.4.13, inspect_ai 0.3.285, lighteval 0.13.0, verl 0.9.1, trl 1.16.0. Problems and answers are made up: of four
samples of each sum `RIGHT` are correct, in this order.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

LOGS = Path(__file__).with_name("logs")
RIGHT = {"2+2": [1, 1, 1, 1], "2+3": [1, 0, 1, 0], "3+4": [0, 0, 1, 0], "4+5": [0, 0, 0, 0]}


def answer(problem: str, right: int) -> str:
    """A completion that ends in the sum, or in another number."""
    total = sum(map(int, problem.split("+")))
    return f"The answer is {total if right else total + 1}."


def gold(problem: str) -> str:
    return str(sum(map(int, problem.split("+"))))


def lm_eval() -> None:
    """One repeat under two filters with one metric each, and four repeats."""
    from lm_eval.api.model import LM
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.loggers import EvaluationTracker

    class Answers(LM):
        def generate_until(self, requests: Any, **_: Any) -> list[str]:
            seen: dict[str, int] = {}
            out = []
            for request in requests:
                problem = request.args[0].removesuffix("=")
                out.append(answer(problem, RIGHT[problem][seen.get(problem, 0)]))
                seen[problem] = seen.get(problem, 0) + 1
            return out

        def loglikelihood(self, requests: Any) -> Any:
            raise NotImplementedError

        def loglikelihood_rolling(self, requests: Any) -> Any:
            raise NotImplementedError

    rows = LOGS / "rows.json"
    rows.write_text(json.dumps([{"problem": problem, "gold": gold(problem)} for problem in RIGHT]))
    numbers = [{"function": "regex", "regex_pattern": r"(\d+)"}, {"function": "take_first"}]
    exact = [{"function": "regex", "regex_pattern": r"^(\d+)$"}, {"function": "take_first"}]
    for name, repeats in (("lm_eval", 1), ("lm_eval_repeats", 4)):
        task = {
            "task": "sums", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(rows)}}, "test_split": "test",
            "output_type": "generate_until", "doc_to_text": "{{problem}}=", "doc_to_target": "{{gold}}", "repeats": repeats,
            "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
            "generation_kwargs": {"until": ["\n"], "do_sample": True, "temperature": 0.7},
            "filter_list": [{"name": "number", "filter": numbers}, {"name": "whole", "filter": exact}],
        }  # fmt: skip
        tracker = EvaluationTracker(output_path=str(LOGS / "out"))
        found = simple_evaluate(
            Answers(), tasks=[task], log_samples=True, evaluation_tracker=tracker, bootstrap_iters=0
        )
        tracker.date_id, tracker.general_config_tracker.model_name_sanitized = "2026-11-26T00-00-00.0", "answers"
        tracker.save_results_samples("sums", found["samples"]["sums"])
        (written,) = (LOGS / "out").rglob("samples_sums_*.jsonl")
        shutil.move(written, LOGS / f"{name}.jsonl")
    shutil.rmtree(LOGS / "out")
    rows.unlink()


def inspect_ai() -> None:
    """Four epochs under two scorers, as .eval and as .json."""
    from inspect_ai import Task, eval
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.log import read_eval_log, write_eval_log
    from inspect_ai.model import ModelOutput
    from inspect_ai.scorer import includes, match
    from inspect_ai.solver import solver

    @solver
    def answers() -> Any:
        async def solve(state: Any, _: Any) -> Any:
            text = answer(state.input_text, RIGHT[state.input_text][state.epoch - 1])
            stop = "max_tokens" if (state.input_text, state.epoch) == ("4+5", 4) else "stop"
            state.output = ModelOutput.from_content("mockllm/model", text, stop_reason=stop)
            return state

        return solve

    samples = MemoryDataset([Sample(input=problem, target=gold(problem), id=problem) for problem in RIGHT])
    task = Task(dataset=samples, solver=answers(), scorer=[match(numeric=True), includes()], epochs=4, name="sums")
    (log,) = eval(
        task, model="mockllm/model", log_dir=str(LOGS / "out"), log_format="eval", display="none", temperature=0.7
    )
    full = read_eval_log(log.location)
    for sample in full.samples or ():
        sample.events = []  # transcripts, which make the file large
    write_eval_log(full, str(LOGS / "inspect_ai.json"), "json")
    shutil.move(log.location, LOGS / "inspect_ai.eval")
    shutil.rmtree(LOGS / "out")


def lighteval() -> None:
    """One completion under two metrics, and four completions under avg@n, by lighteval's own logger."""
    from lighteval.logging.evaluation_tracker import EvaluationTracker
    from lighteval.models.model_output import ModelResponse
    from lighteval.tasks.requests import Doc

    for name, n in (("lighteval", 1), ("lighteval_avg", 4)):
        tracker = EvaluationTracker(output_dir=str(LOGS / "out"))
        tracker.general_config_logger.model_name = "answers"
        for i, (problem, right) in enumerate(RIGHT.items()):
            doc = Doc(
                query=f"{problem}=", choices=[gold(problem)], gold_index=0, id=str(i), task_name="sums|0", num_samples=n
            )
            texts = [answer(problem, one) for one in right[:n]]
            metric = {"em": float(right[0]), "qem": 0.0} if n == 1 else {"avg@n:n=4": sum(right) / n}
            detail = tracker.details_logger.Detail(doc, ModelResponse(text=texts), metric)
            tracker.details_logger.details["sums|0"].append(detail)
        tracker.save_details("2026-11-26T00-00-00", _details(tracker))
        (written,) = (LOGS / "out").rglob("details_*.parquet")
        shutil.move(written, LOGS / f"{name}.parquet")
    shutil.rmtree(LOGS / "out")


def _details(tracker: Any) -> Any:
    """The data sets that `EvaluationTracker.save` makes of the logged details."""
    from dataclasses import asdict

    from datasets import Dataset

    return {
        task: Dataset.from_list([asdict(one) for one in found])
        for task, found in tracker.details_logger.details.items()
    }


def verl() -> None:
    """A validation dump at step 20 with numbers of the reward function besides `score`."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    rows = [(problem, one) for problem, right in RIGHT.items() for one in right]
    inputs, outputs, golds = ([f(*row) for row in rows] for f in (lambda p, _: p, answer, lambda p, _: gold(p)))
    scores = [2.0 * one - 1 for _, one in rows]
    more = {"acc": [bool(one) for _, one in rows], "pred": outputs}
    RayPPOTrainer._write_generations(inputs, outputs, golds, scores, more, str(LOGS), 20)
    (LOGS / "20.jsonl").rename(LOGS / "verl.jsonl")


def trl() -> None:
    """Completions of one GRPO step with two rewards. The model is tiny and random; a reward function puts the made-up outcomes
    in."""
    import tempfile

    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    words = ["<pad>", "<eos>", *"0123456789+=."]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="."))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")
    sizes = {
        "vocab_size": len(words),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    model = LlamaForCausalLM(LlamaConfig(**sizes, pad_token_id=0, eos_token_id=1, bos_token_id=None))
    left = {problem: list(right) for problem, right in RIGHT.items()}

    def correct(prompts: list[str], **_: Any) -> list[float]:
        return [float(left[prompt].pop(0)) for prompt in prompts]

    def short(completions: list[str], **_: Any) -> list[float]:
        return [0.25 for _ in completions]

    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out, per_device_train_batch_size=16, num_generations=4, max_completion_length=4, max_steps=1,
            logging_steps=1, log_completions=True, num_completions_to_print=0, report_to="none", use_cpu=True,
            save_strategy="no", beta=0.0,
        )  # fmt: skip
        data = Dataset.from_list([{"prompt": problem} for problem in RIGHT])
        GRPOTrainer(model, [correct, short], args=args, train_dataset=data, processing_class=tokenizer).train()
        (written,) = (Path(out) / "completions").glob("*.parquet")
        shutil.copy(written, LOGS / "trl.parquet")


if __name__ == "__main__":
    LOGS.mkdir(exist_ok=True)
    {"lm_eval": lm_eval, "inspect_ai": inspect_ai, "lighteval": lighteval, "verl": verl, "trl": trl}[sys.argv[1]]()
