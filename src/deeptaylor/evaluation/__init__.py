"""Judge ways to explain by metrics on the same inputs (docs/faithful.md).

    evaluate ──► inputs and classes: tensors, or a folder of photographs (evaluate.py)
             ──► methods: the library's, baselines (baselines/), the user's own
             ──► metrics (metrics.py; deletion in engine/deletion.py; of texts, text_metrics.py)
             ──► Evaluation: values, intervals, curves, report.html, JSON (scores.py)

A method is any callable (network, x, classes) → relevance shaped like x, or like x without its channels.
"""
