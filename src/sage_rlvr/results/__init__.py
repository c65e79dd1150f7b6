"""Run folders, sample stores and records read into the table of `verdicts`; its numbers as a summary and a page. No torch.

    results = read_results("runs/demo")        any folder, run, record, store, file of rows or stored summary
    findings = findings_of(results)            of `verdicts`: every comparison, and the verdicts on arms from samples
    summary = summary_of(results, findings)    all numbers as strict JSON
    report_of(results, findings)               the values of a page, laid out by `page` from the summary alone

Read read.py first (`read_results`, the only code that opens result folders), then summary.py.
"""
