"""Files of lm-evaluation-harness: in, out, and in again. The lines below are what its version 0.4.13 wrote for three documents."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sage_rlvr.cli.app import main
from sage_rlvr.contrib.io.lm_eval import export_lm_eval, import_lm_eval, targets_of
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.sample_report import report_lines
from sage_rlvr.evaluation.store import SampleStore
from samples_common import IDENTITY, PROBLEMS, SMALL, draw, evaluate

DATE = "2026-01-02T03-04-05.678901"
DOCS = [
    ({"question": "1+1?", "answer": 2, "id": "x1"}, "2"),
    ({"question": "What is é?", "answer": "lol", "id": "x2"}, "lol"),
    ({"question": "c", "answer": 3, "id": "x3"}, "3"),
]
# Written by the harness: for the first document, and for the task (both filters).
DOC_HASH = "87f8e42f637f669e60265c0f3406013ad2aea70d978db38d105b75ba1408ba89"
PROMPT_HASH = "d4c3b21e49b551c590f0be6d22a325063e8681e9e5bfbe46896e123910b9d0d9"
TARGET_HASH = "d4735e3a265e16eee03f59718b9b5d03019c07d8b6c51f90da3a666eec13ab35"
TASK_HASH = "60cc8f9ce9ac9b2af6ece001eff5cafacf652ec75565da97caa6bf37cfa8fec0"
SAMPLED = {"until": ["\n"], "do_sample": True, "temperature": 0.7}
GREEDY = {"until": ["\n"], "do_sample": False}
RESULTS = {
    "model_name": "nobody/none",
    "config": {"model": "dummy", "model_sha": "abc", "torch_seed": 1234},
    "lm_eval_version": "0.4.13",
    "transformers_version": "5.23.0",
    "chat_template_sha": None,
}


def lines(repeats: int = 2, settings: dict | None = None) -> list[dict]:
    """What the harness logs when the model always says "lol" and a first filter keeps its o, without the hashes."""
    found = []
    for name, answer in (("strict", "o"), ("all", "lol")):
        for number, (doc, target) in enumerate(DOCS):
            prompt = f"Q: {doc['question']}\nA:"
            found.append(
                {
                    "doc_id": number,
                    "doc": doc,
                    "target": target,
                    "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": settings or SAMPLED}},
                    "resps": [["lol"] * repeats],
                    "filtered_resps": [answer],
                    "filter": name,
                    "metrics": ["exact_match"],
                    "exact_match": float(answer == target),
                }
            )
    return found


def imported(path: Path, store: Path, **options: Any) -> SampleStore:
    return import_lm_eval(path, store, **({"filter": "strict"} | options))


def write(folder: Path, rows: list[dict], results: dict | None = RESULTS) -> Path:
    path = folder / f"samples_local_sums_{DATE}.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    if results is not None:
        (folder / f"results_{DATE}.json").write_text(json.dumps(results))
    return path


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_identity_says_what_the_harness_knew(tmp_path: Path):
    path = write(tmp_path, lines(), RESULTS | {"task_hashes": {"local_sums": TASK_HASH}})
    identity = imported(path, tmp_path / "store").identity  # a warning would say that the hashes differ
    assert (identity.task, identity.task_hash) == ("local_sums", TASK_HASH)
    assert (identity.model, identity.revision, identity.seed, identity.chunk_size) == ("nobody/none", "abc", 1234, 2)
    assert identity.versions == {"lm_eval": "0.4.13", "transformers": "5.23.0"}
    assert identity.decoding == {
        "preset": "lm_eval", "temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "max_new_tokens": 256,
        "until": ["\n"], "do_sample": True,
    }  # fmt: skip


def test_one_repeat_brings_its_verdict(tmp_path: Path):
    path = write(tmp_path, lines(1, GREEDY))
    store = imported(path, tmp_path / "all", filter="all", problem_id="id")
    assert [(s.problem, s.text, s.answer, s.verdict, s.reason) for s in store.samples()] == [
        ("x1", "lol", "lol", "wrong", "lm_eval exact_match,all"),
        ("x2", "lol", "lol", "right", "lm_eval exact_match,all"),
        ("x3", "lol", "lol", "wrong", "lm_eval exact_match,all"),
    ]
    assert store.identity.greedy and store.counts(1).finish_unknown.tolist() == [1, 1, 1]
    strict = imported(path, tmp_path / "strict")
    assert strict.counts().problems == ("0", "1", "2") and strict.counts().right.sum() == 0
    assert strict.samples()[0].prompt_hash == PROMPT_HASH


def test_several_repeats_wait_for_verdicts_of_ours(tmp_path: Path):
    store = imported(write(tmp_path, lines()), tmp_path / "store", problem_id="id")
    with pytest.warns(UserWarning, match="every sample is the same text"):
        assert store.counts().undecided.tolist() == [2, 2, 2]
    gold = {doc["id"]: target for doc, target in DOCS}

    class Verdict:
        def __init__(self, right: bool):
            self.label, self.reason = ("right", "right") if right else ("wrong", "differs")

    store.reverify(lambda ids, texts: [Verdict(gold[i] == t) for i, t in zip(ids, texts, strict=True)], "ours")
    assert store.counts(check=False).right.tolist() == [0, 2, 0]


def test_importing_twice_changes_nothing(tmp_path: Path):
    path = write(tmp_path, lines())
    first = imported(path, tmp_path / "store").digest()
    assert imported(path, tmp_path / "store").digest() == first
    doubled = write(tmp_path, [*lines(), *lines()])  # a second run that appended the same to the same file
    assert len(imported(doubled, tmp_path / "other").table()) == 6


def test_the_key_that_names_a_problem_is_part_of_the_store(tmp_path: Path):
    """Else each question would stand twice, and a judge would find no target of the first half."""
    path = write(tmp_path, lines())
    digest = imported(path, tmp_path / "store").digest()
    with pytest.raises(DataError, match="store: was imported with --problem-id doc_id; use another store"):
        imported(path, tmp_path / "store", problem_id="id")
    store = imported(path, tmp_path / "store")
    assert store.digest() == digest and sorted(targets_of(store)) == ["0", "1", "2"]
    imported(path, tmp_path / "named", problem_id="id")
    with pytest.raises(DataError, match="named: was imported with --problem-id id; use another store"):
        imported(path, tmp_path / "named")
    sidecar = tmp_path / "named" / "lm_eval.jsonl"  # as an older version left it
    sidecar.write_text("".join(line + "\n" for line in sidecar.read_text().splitlines()[1:]))
    with pytest.raises(DataError, match=r"no target of 1 of its 3 problems \('x1'\)"):
        targets_of(SampleStore.open(tmp_path / "named"))


def test_nothing_is_made_of_a_file_whose_problems_have_no_ids(tmp_path: Path):
    with pytest.raises(DataError, match="its doc has no 'name'"):
        imported(write(tmp_path, lines()), tmp_path / "store", problem_id="name")
    assert not (tmp_path / "store").exists()


def test_an_import_that_nobody_judged_has_no_scores(tmp_path: Path):
    store = imported(write(tmp_path, lines()), tmp_path / "store")
    said = "\n".join(report_lines(store))
    assert "no pass@k: none of the 6 samples has a verdict; add --judge boxed (or tag, last_number, whole)" in said
    assert "pass@k  " not in said and "avg@" not in said and "0.000" not in said
    assert "truncated  not recorded" in said
    judged = "\n".join(report_lines(imported(write(tmp_path, lines(1)), tmp_path / "one")))
    assert "avg@1" in judged and "no pass@k" not in judged and "(a missing answer counts as one answer)" in judged


def test_an_imported_store_goes_back_into_the_same_lines(tmp_path: Path):
    path = write(tmp_path, lines())
    store = imported(path, tmp_path / "store", problem_id="id")
    out = export_lm_eval(store, tmp_path / "out", date=DATE)
    assert out.name == path.name
    for before, after in zip(lines(), read(out), strict=False):
        same = {key for key in before if before[key] == after[key]}
        assert {"doc_id", "doc", "target", "arguments", "resps"} <= same
    first = read(out)[0]
    assert (first["doc_hash"], first["prompt_hash"], first["target_hash"]) == (DOC_HASH, PROMPT_HASH, TARGET_HASH)
    assert first["filter"] == "sage-rlvr" and first["exact_match"] == 0.0 and first["undecided"] == 1.0
    assert imported(out, tmp_path / "again", filter=None).digest() == store.digest()


def test_a_store_of_ours_goes_out_and_comes_back(tmp_path: Path):
    docs = {problem: {"doc": {"q": problem}, "target": "1", "prompt": problem} for problem in PROBLEMS}
    with evaluate(tmp_path / "store", PROBLEMS, 4, SMALL) as store:
        with pytest.raises(DataError, match=r"2 problems \('a', ...\) are not in docs"):
            export_lm_eval(store, tmp_path / "out")
        path = export_lm_eval(store, tmp_path / "out", docs=docs, date=DATE)
        samples = store.samples()
    back = imported(path, tmp_path / "back", filter=None)
    assert back.identity == SMALL
    names = ("problem", "sample", "seed", "prompt_hash", "text", "finish", "answer", "verdict", "reason")
    assert [[getattr(s, n) for n in names] for s in back.samples()] == [[getattr(s, n) for n in names] for s in samples]
    assert back.samples()[0].token_ids is None
    first = read(path)[0]
    assert first["resps"] == [[draw("a", n).text for n in range(4)]] and first["filtered_resps"] == [
        [draw("a", n).answer for n in range(4)]
    ]
    assert first["exact_match"] == sum(draw("a", n).verdict == "right" for n in range(4)) / 4
    assert first["arguments"]["gen_args_0"]["arg_1"]["max_gen_toks"] == 8
    results = json.loads((tmp_path / "out" / f"results_{DATE}.json").read_text())
    joined = "".join(line["doc_hash"] + line["prompt_hash"] + line["target_hash"] for line in read(path))
    assert results["task_hashes"] == {"sums": hashlib.sha256(joined.encode()).hexdigest()}


def test_what_is_exported_is_of_one_n_and_one_verifier(tmp_path: Path):
    docs = {problem: {"doc": {}, "target": "", "prompt": ""} for problem in PROBLEMS}
    with evaluate(tmp_path, PROBLEMS, 2, SMALL) as store:
        store.commit([draw("a", n, SMALL) for n in (2, 3)])
        with pytest.raises(DataError, match=r"problems have \[2, 4\] samples"):
            export_lm_eval(store, tmp_path / "out", docs=docs)
        assert len(read(export_lm_eval(store, tmp_path / "out", docs=docs, n=2))) == 2


def test_the_older_form_of_arguments_is_read(tmp_path: Path):
    rows = lines()
    for row in rows:
        row["arguments"] = [[row["arguments"]["gen_args_0"]["arg_0"], SAMPLED]]
        del row["filter"], row["metrics"]
    store = imported(write(tmp_path, rows[:3], None), tmp_path / "store", model="m", filter=None)
    assert store.samples()[0].prompt_hash == PROMPT_HASH and store.identity.model == "m"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"resps": [[["-1.5", "False"]], [["-2.5", "True"]]]}, "output_type generate_until"),
        ({"arguments": {"gen_args_0": {"arg_0": "text"}}}, "output_type generate_until"),
        ({"resps": None}, "output_type generate_until"),
        ({"arguments": None}, r":2: not a line of lm_eval"),
        ({"resps": [["lol"]]}, "1 repeats under"),
        ({"arguments": {"gen_args_0": {"arg_0": "text", "arg_1": GREEDY}}}, "a store has one setting"),
        ({"doc_id": 0, "resps": [["lol", "lal"]]}, "check whether the file has two runs"),
        ({"doc": DOCS[0][0]}, "two documents have the problem id 'x1'"),
        ({"doc": {}}, "its doc has no 'id'"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path: Path, change: dict, word: str):
    rows = lines()[:3]
    rows[1] |= change
    with pytest.raises(DataError, match=word):
        imported(write(tmp_path, rows), tmp_path / "store", problem_id="id")


def test_of_several_filters_one_must_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path, store = write(tmp_path, lines(1, GREEDY)), tmp_path / "store"
    with pytest.raises(DataError, match=r"scores of 2 filters \(strict, all\).*--filter strict"):
        import_lm_eval(path, store)
    assert not store.exists()
    with pytest.raises(SystemExit) as ended:
        main(["samples", str(store), "--from-lm-eval", str(path), "--filter", "all"])
    assert not ended.value.code
    assert "verdicts of exact_match,all (metric, filter)" in capsys.readouterr().err
    one = write(tmp_path, lines(1, GREEDY)[:3])
    assert import_lm_eval(one, tmp_path / "one").identity.verifier_hash == "lm_eval exact_match,strict"


def test_what_cannot_be_known_is_asked_for(tmp_path: Path):
    with pytest.raises(ConfigError, match="pass --model NAME"):
        imported(write(tmp_path, lines(), None), tmp_path / "store")
    with pytest.raises(DataError, match=r"no filter 'maj@8'; choose from \['strict', 'all'\]"):
        imported(write(tmp_path, lines()), tmp_path / "store", filter="maj@8")
    with pytest.raises(DataError, match="no metric 'acc'"):
        imported(write(tmp_path, lines()), tmp_path / "store", metric="acc")
    with pytest.raises(DataError, match="has no samples"):
        imported(write(tmp_path, []), tmp_path / "store")
    with pytest.raises(DataError, match="cannot be read"):
        imported(tmp_path / "nothing.jsonl", tmp_path / "store", model="m")


def test_documents_that_are_not_those_of_the_results_are_noticed(tmp_path: Path):
    path = write(tmp_path, lines()[:-1], RESULTS | {"task_hashes": {"local_sums": TASK_HASH}})
    with pytest.warns(UserWarning, match="check whether a part of it is missing"):
        imported(path, tmp_path / "store")


def test_repeats_of_greedy_decoding_are_one_sample(tmp_path: Path):
    with pytest.warns(UserWarning, match="2 repeats of greedy decoding are one sample"):
        store = imported(write(tmp_path, lines(2, GREEDY)), tmp_path / "store")
    assert store.counts(1).n.tolist() == [1, 1, 1]


def test_lone_surrogates_survive_the_way_out_and_back(tmp_path: Path):
    odd = replace(draw("a", 0, SMALL), text="\ud800é", answer="\udfff")
    with SampleStore.open(tmp_path / "store", replace(IDENTITY, chunk_size=1)) as store:
        store.commit([odd])
        docs = {"a": {"doc": {"q": "\ud801"}, "target": "é", "prompt": "\ud801"}}
        back = imported(export_lm_eval(store, tmp_path / "out", docs=docs, date=DATE), tmp_path / "back", filter=None)
    assert (back.samples()[0].text, back.samples()[0].answer) == (odd.text, odd.answer)


@pytest.mark.parametrize(
    ("settings", "temperature", "limit"),
    [
        ({"do_sample": False, "temperature": 0.6}, 0.0, 256),
        ({"do_sample": True}, 1.0, 256),
        ({"temperature": 0.6, "max_gen_toks": 99, "max_tokens": 98}, 0.6, 99),
        ({"until": [], "max_completion_tokens": 5}, 0.0, 5),
    ],
)
def test_settings_mean_what_the_harness_makes_of_them(tmp_path: Path, settings: dict, temperature: float, limit: int):
    decoding = imported(write(tmp_path, lines(1, settings)), tmp_path / "store").identity.decoding
    assert (decoding["temperature"], decoding["max_new_tokens"]) == (temperature, limit)


OURS = {"problem": "a", "prompt_hash": "h", "seed": [1, 1], "finish": ["stop"] * 2, "answer": ["1"] * 2}
OURS |= {"verdict": ["right"] * 2, "reason": ["r"] * 2}
LINE_KINDS: dict[str, Any] = {
    "no JSON": b"{",
    "a list": b"[1]",
    "a text": b'"lol"',
    "null": b"null",
    "nested": b"[" * 100_000,
    "nested object": b'{"a":' * 100_000,
    "not UTF-8": b'{"doc_id": "\xff\xfe"}',
    "NUL": b"\0\0\0",
    "empty object": b"{}",
    "two objects": b"{} {}",
    "no doc_id": {"doc_id": None},
    "doc_id a list": {"doc_id": [1]},
    "doc_id a mapping": {"doc_id": {"a": 1}},
    "doc_id true": {"doc_id": True},
    "doc_id NaN": {"doc_id": math.nan},
    "arguments a text": {"arguments": "lol"},
    "arguments a number": {"arguments": 1},
    "arguments of numbers": {"arguments": [1, 2]},
    "arguments by other names": {"arguments": {"a": {"b": 1}}},
    "arguments empty": {"arguments": []},
    "settings a text": {"arguments": {"gen_args_0": {"arg_0": "p", "arg_1": "s"}}},
    "settings other": {"arguments": {"gen_args_0": {"arg_0": "p", "arg_1": {"temperature": "hot"}}}},
    "resps a text": {"resps": "lol"},
    "resps of numbers": {"resps": [[1, 2]]},
    "resps empty": {"resps": []},
    "resps of nothing": {"resps": [[]]},
    "metrics a number": {"metrics": 3},
    "metrics of lists": {"metrics": [["a"]]},
    "score beyond float": {"exact_match": 10**400},
    "ours a text": {"sage_rlvr": "lol"},
    "ours without a problem": {"sage_rlvr": {"a": 1}},
    "ours too short": {"sage_rlvr": OURS | {"seed": [1]}},
    "ours of other kinds": {"sage_rlvr": OURS | {"seed": ["x", "x"]}},
    "ours of no verdict": {"sage_rlvr": OURS | {"verdict": [[], 1]}},
}
RESULT_KINDS: dict[str, Any] = {
    "results no JSON": b"{",
    "results a list": b"[]",
    "results nested": b"[" * 100_000,
    "results not UTF-8": b"\xff",
    "config a list": {"config": [1]},
    "seed a text": {"config": {"torch_seed": "x"}},
    "seed a list": {"config": {"torch_seed": [1]}},
    "model a number": {"model_name": 3},
    "task_hashes a list": {"task_hashes": [1]},
    "versions a mapping": {"lm_eval_version": {"a": [1]}, "config": 0},
    "ours without identity": {"sage_rlvr": {}},
    "ours a list": {"sage_rlvr": [1]},
    "identity a list": {"sage_rlvr": {"identity": [1]}},
    "identity of others": {"sage_rlvr": {"identity": {name: [1] for name in IDENTITY.tree()}}},
}  # fmt: skip


@pytest.mark.parametrize("kind", [*LINE_KINDS, *RESULT_KINDS])
@pytest.mark.parametrize("every", [True, False], ids=["every line", "one line"])
def test_a_malformed_file_is_a_sentence(kind: str, every: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows, results = lines()[:3], RESULTS
    path = write(tmp_path, rows)
    if (harm := LINE_KINDS.get(kind, RESULT_KINDS.get(kind))) is not None and kind in LINE_KINDS:
        made = [json.dumps(row | harm).encode() if isinstance(harm, dict) else harm for row in rows]
        whole = [json.dumps(row).encode() for row in rows]
        path.write_bytes(b"\n".join([made[0], *(made if every else whole)[1:]]) + b"\n")
    else:
        text = json.dumps(results | harm).encode() if isinstance(harm, dict) else harm
        (tmp_path / f"results_{DATE}.json").write_bytes(text)
    with pytest.raises(SystemExit) as ended:
        main(["samples", str(tmp_path / "store"), "--from-lm-eval", str(path), "--filter", "strict"])
    said = capsys.readouterr()
    assert ended.value.code == 2 and "Traceback" not in said.err and str(tmp_path) in said.err, said.err
    assert not (tmp_path / "store" / "store.json").exists()
