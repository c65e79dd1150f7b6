"""Write the logs in logs/ with the programs that own the formats: python write_logs.py PROGRAM, in an environment with that
program.

Versions: lm_eval 0.4.13, inspect_ai 0.3.285, lighteval 0.13.0, verl 0.9.1, trl 1.16.0, verifiers 0.4.0, tinker_cookbook 0.6.1;
LiveCodeBench at 28fef95 with its repository on the path. `of_source` writes, without the program, what its source writes:
Qwen2.5-Math at a45202b, NeMo-Skills at 8b18f399, EvalPlus 0.3.1, verifiers at a60a606e (legacy), Every Eval Ever 0.3.0, Sharpening
Tax. Problems and answers are made up: of four samples of each sum `RIGHT` are correct, in this order.
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


def verifiers() -> None:
    """Episodes of one agent with two rewards and a metric; one was cut."""
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.episode import Episode
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.task import TaskData
    from verifiers.v1.trace import AgentInfo, ModelCall, Trace, TraceTask
    from verifiers.v1.types import AssistantMessage, UserMessage
    from verifiers.v1.utils.trace_store import write_episode

    (LOGS / "traces.jsonl").unlink(missing_ok=True)
    for index, (problem, right) in enumerate(RIGHT.items()):
        for sample, one in enumerate(right):
            data = TaskData(idx=index, prompt=f"{problem}=")
            task = TraceTask(type="Sums", data=data, key=problem)
            cut = (problem, sample) == ("4+5", 3)
            trace = Trace(task=task, agent=AgentInfo(config=AgentConfig()))
            trace.nodes = [
                MessageNode(message=UserMessage(content=f"{problem}=")),
                MessageNode(message=AssistantMessage(content=answer(problem, one)), parent=0, sampled=True),
            ]
            trace.calls = [ModelCall(node=1, finish_reason="length" if cut else "stop")]
            trace.record_reward("sum", one)
            trace.record_reward("format", 0.5, weight=0.0)
            trace.record_metric("length", len(answer(problem, one)))
            trace.ok = True
            write_episode(LOGS, Episode(task=task, traces=[trace], ok=True))
    (LOGS / "traces.jsonl").rename(LOGS / "verifiers_traces.jsonl")


def tinker() -> None:
    """An evaluation at iteration 20 by tinker-cookbook's own serializer."""
    from types import SimpleNamespace

    from tinker_cookbook.rl.rollout_logging import serialize_rollout_summaries

    groups = []
    for problem, right in RIGHT.items():
        steps = [
            SimpleNamespace(
                ob=SimpleNamespace(length=4), ac=SimpleNamespace(tokens=[1, 2]), reward=0.0, episode_done=True, metrics={},
                logs={"problem": problem},
            )
        ]  # fmt: skip
        groups.append(SimpleNamespace(
            trajectories_G=[SimpleNamespace(transitions=steps, final_ob=SimpleNamespace(length=6)) for _ in right],
            final_rewards_G=[float(one) for one in right], metrics_G=[{"correct": float(one), "format": 1.0} for one in right],
            get_total_rewards=lambda right=right: [one - 0.1 for one in right],
        ))  # fmt: skip
    rows = serialize_rollout_summaries(
        split="eval/sums", iteration=20, trajectory_groups_P=groups, taglist_P=[["sums"]] * len(groups)
    )
    lines("tinker.jsonl", rows)


def livecodebench() -> None:
    """Generations with their grades by the method of a LiveCodeBench problem."""
    from lcb_runner.benchmarks.code_generation import CodeGenerationProblem

    rows = []
    for problem, right in RIGHT.items():
        known = {"public_test_cases": "[]", "private_test_cases": "[]", "metadata": "{}", "starter_code": ""}
        made = CodeGenerationProblem(
            question_title=problem, question_content=f"{problem}=", platform="leetcode", question_id=problem, contest_id="c",
            contest_date="2026-01-01", difficulty="easy", **known,
        )  # fmt: skip
        texts = [answer(problem, one) for one in right]
        rows.append(made.insert_output_evaluation(texts, texts, [bool(one) for one in right], metadata=[]))
    (LOGS / "livecodebench.json").write_text(json.dumps(rows, indent=4))


def of_source() -> None:
    """Rows that the sources of programs write which are not started here."""
    qwen, nemo, old, ever, tax, plus = [], [], [], [], [], {}
    for index, (problem, right) in enumerate(RIGHT.items()):
        texts = [answer(problem, one) for one in right]
        preds = [text.removesuffix(".").rpartition(" ")[2] for text in texts]
        qwen.append({
            "idx": index, "question": f"{problem}=", "gt_cot": "", "gt": gold(problem), "answer": gold(problem), "code": texts,
            "pred": preds, "report": [None] * 4, "score": [bool(one) for one in right],
        })  # fmt: skip
        nemo.append({
            "generation": texts[0], "problem": f"{problem}=", "expected_answer": gold(problem), "predicted_answer": preds[0],
            "symbolic_correct": bool(right[0]),
        })  # fmt: skip
        tax.append({"task_id": problem, "pass_flags": right})
        failed = {"base_fail_tests": [], "plus_fail_tests": []}
        plus[problem] = [
            {"task_id": problem, "solution": text, "base_status": "pass" if one else "fail",
             "plus_status": "pass" if one and i else "timeout", **failed}
            for i, (text, one) in enumerate(zip(texts, right, strict=True))
        ]  # fmt: skip
        for sample, (text, one) in enumerate(zip(texts, right, strict=True)):
            old.append({
                "example_id": index, "prompt": [{"role": "user", "content": f"{problem}="}],
                "completion": [{"role": "assistant", "content": text}], "answer": gold(problem), "reward": float(one),
                "error": None, "timing": {"total_ms": 1.0}, "is_completed": True, "is_truncated": sample == 3,
                "stop_condition": "completed",
                "metrics": {"exact": float(one), "num_turns": 1.0}, "tool_defs": None, "exact": float(one), "num_turns": 1.0,
            })  # fmt: skip
            ever.append({
                "schema_version": "0.3.0", "evaluation_id": "sums/answers/1750000000", "model_id": "org/answers",
                "evaluation_name": "sums", "evaluation_result_id": "sums.exact", "sample_id": problem,
                "sample_hash": None, "interaction_type": "single_turn",
                "input": {"raw": f"{problem}=", "reference": [gold(problem)]}, "output": {"raw": [text]},
                "answer_attribution": [{"turn_idx": 0, "source": "output.raw", "extracted_value": text,
                                        "extraction_method": "regex", "is_terminal": True}],
                "evaluation": {"score": one * 0.9, "is_correct": bool(one)}, "error": None,
            })  # fmt: skip
    lines("qwen_math.jsonl", qwen)
    lines("nemo_skills.jsonl", nemo)
    lines("sharpening_tax.jsonl", tax)
    lines("verifiers.jsonl", old)
    lines("every_eval_ever.jsonl", ever)
    (LOGS / "evalplus.json").write_text(json.dumps({"date": "2026-11-29 00:00", "hash": "0", "eval": plus}))


def lines(name: str, rows: list[Any]) -> None:
    (LOGS / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    LOGS.mkdir(exist_ok=True)
    programs = (lm_eval, inspect_ai, lighteval, verl, trl, verifiers, tinker, livecodebench, of_source)
    {one.__name__: one for one in programs}[sys.argv[1]]()
