"""Verdicts: rows of samples in, "widened" or "sharpened" out. The ground floor: of this package it imports `errors` and `safe_io`.

    results = read_files("base.jsonl", "rl.jsonl")      files.py: files of rows, by arm
    findings = findings_of(results)                     findings.py: every comparison, corrected, and the verdicts
    print(*all_lines(results, findings), sep="\n")      text/screen.py; verdict_json.py has the same as JSON

Read in this order:

    readers/                         files of other programs -> rows -> counts n and c of each problem (rows.py, evaluation.py)
    row_counts.py, problem_fields.py counts of all files: the same problems, independent samples, clusters, chance floors
    measurements.py, results.py      the table, one row per arm, training seed, task and temperature; data only
    scores.py, pairs.py, design.py   arrays of an arm; which arms are compared, and at which metric (metric.py)
    units.py                         what a difference is over: problems of one run each, or training seeds
    comparisons.py                   the list of comparisons (row.py), Holm's correction in two families
    of_samples.py, of_records.py     what is compared, as data: pairs, metrics and estimators; of_temperatures.py, kl.py
    verdict.py                       the difference over k, where it crosses 0, problems solved by one arm only
    text/                            English: the only code that makes sentences of rows and verdicts
    summary_io.py, verdict_json.py   the same as JSON
    stats/                           functions on arrays: pass@k, intervals, paired tests, bands, mixtures, power, independence
"""
