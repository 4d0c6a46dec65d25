"""Where things are, and the order of the package's folders."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "deeptaylor"

# A folder or file imports only from those above it here. "deeptaylor" is the package itself, as `import deeptaylor`.
ORDER = [
    "shown",
    "errors",
    "domain",
    "support",
    "metrics",
    "maps",
    "rules",
    "graph",
    "operations",
    "passes",
    "plan",
    "run",
    "heatmap",
    "properties",
    "ledger",
    "pictures",
    "concepts",
    "explanation",
    "secant",
    "explainer",
    "root_point",
    "methods",
    "assets",
    "text",
    "models",
    "evaluation",
    "runs",
    "deeptaylor",
    "paper",
    "app",
    "demo",
    "server",
    "__main__",
]
