"""How long the page of `deeptaylor serve` takes, in a real Chromium: a picture until its map, a class until its map.

    python benchmarks/workbench.py [--model squeezenet1_1] [--repeats 11] [--photo FILE]

Measured inside the page, from the moment the file or the class is chosen until the picture is painted. The network is
captured and planned once it is loaded; a picture that comes while that goes on waits for it, and is said apart as the
first one. Wanted: 1 s for a picture, 0.5 s for a class (medians).
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import statistics
import sys
import threading
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from deeptaylor import assets
from deeptaylor.app.server.main import serve

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PAINTED = """
const painted = async (began) => {
  const stage = document.getElementById("stage");
  do await new Promise(requestAnimationFrame);
  while (stage.hasAttribute("aria-busy") || !stage.querySelector(".pane:not([hidden])"));
  return performance.now() - began;
};
"""
UPLOAD = f"""async ([name, bytes]) => {{ {PAINTED}
  const held = new DataTransfer();
  held.items.add(new File([new Uint8Array(bytes)], name));
  const input = document.getElementById("file");
  const began = performance.now();
  input.files = held.files;
  input.dispatchEvent(new Event("change"));
  while (document.getElementById("file-name").textContent !== name) await new Promise(requestAnimationFrame);
  return painted(began);
}}"""
SWITCH = f"""async (k) => {{ {PAINTED}
  const began = performance.now();
  document.querySelectorAll("#classes button")[k].click();
  return painted(began);
}}"""


def measured(page: Any, photo: Path, repeats: int) -> dict[str, Any]:
    """Milliseconds of the first explanation, and medians of those after it."""
    data = list(photo.read_bytes())
    first = page.evaluate(UPLOAD, ["first.png", data])
    # Each with a byte more behind its end: the server keeps the last picture, by its hash.
    uploads = [page.evaluate(UPLOAD, [f"{k}.png", data + [0] * (k + 1)]) for k in range(repeats)]
    switches = [page.evaluate(SWITCH, 1 + k % 4) for k in range(repeats)]
    return {
        "first_ms": round(first),
        "upload_ms": round(statistics.median(uploads)),
        "class_ms": round(statistics.median(switches)),
        "slowest_ms": [round(max(uploads)), round(max(switches))],
    }


def main() -> int:
    """Print what was measured, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="squeezenet1_1")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--photo", type=Path, help="the demo's cat by default")
    asked = parser.parse_args()
    told: queue.Queue[str] = queue.Queue()
    threading.Thread(target=serve, kwargs={"model": asked.model, "ready": told.put}, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(told.get(timeout=60))
        page.get_by_text("Ready.", exact=True).wait_for(timeout=120_000)
        found = measured(page, asked.photo or assets.path("cat"), asked.repeats)
        browser.close()
    load = [round(n, 1) for n in os.getloadavg()]
    found |= {"model": asked.model, "repeats": asked.repeats, "cores": os.cpu_count(), "load": load}
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
