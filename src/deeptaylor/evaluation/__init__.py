"""Ways to explain, judged by metrics on the same inputs (docs/faithful.md).

    evaluate ──► inputs and classes: tensors, or a folder of photographs (data)
             ──► methods: ours, opponents, the user's own
             ──► metrics (metrics/)
             ──► Evaluation: values, intervals, curves (result) ──► table, report.html, JSON (report)

A method is any callable (network, x, classes) → relevance shaped like x, or like x without its channels.
"""
