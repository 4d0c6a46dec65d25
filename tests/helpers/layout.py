"""Where things are, and the order of the package's folders."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "deeptaylor"

# A folder or file imports only from those above it here. "deeptaylor" is the package itself, as `import deeptaylor`.
ORDER = [
    "formatting",
    "errors",
    "domain",
    "support",
    "maps",
    "rules",
    "settings",
    "secants",
    "graph",
    "operations",
    "passes",
    "plan",
    "engine",
    "check",
    "ledger",
    "viz",
    "concepts",
    "explanation",
    "between",
    "explainer",
    "losses",
    "methods",
    "assets",
    "text",
    "models",
    "captum",
    "quantus",
    "evaluation",
    "datasets",
    "deeptaylor",
    "paper",
    "demo",
    "app",
    "server",
    "__main__",
]
