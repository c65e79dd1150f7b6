"""Verdicts: rows of samples in, "widened" or "sharpened" out. Of this package only `errors` and `safe_io` are imported here.

    arm       a policy or method by its printed name; the control is the arm that the others are compared with
    exact     from a record: the probability of every right completion of a task that can list them
    sampled   from samples: n completions of a problem, c of them right, in a file of rows or in a store that `sage-rlvr eval` wrote
    policy    an arm on one task at one temperature, with all its training seeds
    floor     the chance floor: pass@k of a guesser (chance.py)

    results = read_files("base.jsonl", "rl.jsonl")      files.py: files of rows, by arm
    findings = findings_of(results)                     findings.py: every comparison, corrected, and the verdicts
    print(*all_lines(results, findings), sep="\n")      text/screen.py; verdict_json.py has the same as JSON

Read in this order:

    readers/                         files of other programs -> rows -> counts n and c of each problem (rows.py, evaluation.py)
    row_counts.py, problem_fields.py counts of all files: the same problems (row_checks.py), independent samples
                                     (row_independence.py), clusters, chance floors
    measurements.py, results.py      the table, one row per arm, training seed, task and temperature; data only
    scores.py, pairs.py, design.py   arrays of an arm; which arms are compared, and in which metric (metric.py)
    units.py                         the units of a difference: problems (one run of each arm), or training seeds
    comparisons.py                   the list of comparisons (row.py), Holm's correction in two families
    of_samples.py, of_records.py     the comparisons as data: pairs, metrics and estimators; of_temperatures.py, kl.py
    verdict.py                       the difference over k, where it crosses 0, problems solved by one arm only
    text/                            English: the only code that makes sentences of rows and verdicts
    summary_io.py, verdict_json.py   rows and verdicts as JSON
    stats/                           functions on arrays: pass@k, intervals, paired tests, bands, mixtures, power, independence

Optional: distinct.py (distinct right answers), colder.py (arms against their base at other temperatures), baselines.py (mixtures of
baselines, headroom), numbers.py and score_rows.py (pass@k of every policy), one_file.py (a policy by itself), checks.py (the
control against itself), record.py and sources.py (records; training runs, stores and files of rows).
"""
