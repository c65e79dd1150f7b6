"""English: fields in, text out. The only code that makes sentences of comparisons and verdicts; terminal, JSON, page and GitHub's
summary print what it returns, and no code reads that. Plain functions: the words are in the f-strings with the numbers.

    words.py         a number, an interval, a list, a range of k; mixtures.py: a mixture of policies
    rows.py          rows of the list of comparisons: sentence(row), line(rows), chip(row), answer(rows)
    verdicts.py      an arm against the control: headline(verdict) and its lines; fail_on.py: the reports of `--fail-on`
    colder.py        arms against their base at other temperatures, or against mixed weights
    details.py       a pair in detail: the curve over k, the probability of improvement, problems kept, gained and lost; costs
    patterns.py      a reasoning pattern in the right samples of two policies; perplexity.py: their perplexities under the base
    one_file.py      a policy by itself; rejudged.py: completions that a verifier judged again
    notes.py         what is not read or not compared; notes_of_rows.py: what is left out of files of rows, dependent samples
    limits.py        limits of the numbers of a comparison
    screen.py        what a terminal shows: brief_lines(results, findings), and with --full all_lines(results, findings)

Made elsewhere, and printed here as they are: the words of signs of dependent samples (`stats.samples.independence`), of chance
floors (`chance`), and of where distinct answers come from (`distinct`).
"""
