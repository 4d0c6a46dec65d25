"""Are the maps true? Methods are judged by what the network does when they are believed (docs/faithful.md).

    evaluate ──► cases: photographs and their classes (data, pointing)
             ──► methods: ours, opponents, the user's own
             ──► metrics, each a small class in its file: flipping, pointing, inside, …
             ──► Evaluation: values, intervals, curves (result) ──► table, report.html, JSON (report)

A method is any callable (network, x, classes) → relevance shaped like x, or like x without its channels.
"""
