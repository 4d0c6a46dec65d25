// What can be taken along: pictures, numbers, and the words that make the same in Python or on the command line.

import * as api from "./api";
import { make } from "./dom";

export class Taking {
  readonly element = make("section", { class: "taking" });
  private readonly problem = make("p", { class: "error", role: "alert", hidden: true });

  constructor(private readonly shown: () => Promise<Blob>) {}

  show(answer: api.Answer, options: api.Options, picture: Blob): void {
    const file = options["file"] ?? "picture.png";
    const stem = `${file.replace(/\.[^.]*$/, "") || "picture"}_${answer.method}`;
    const seen = new Blob([api.bytes(answer.seen)], { type: "image/png" });
    const python = new Blob([answer.snippet], { type: "text/plain" });
    this.problem.hidden = true;
    this.element.replaceChildren(
      make("h3", {}, "Save and reuse"),
      make(
        "div",
        { class: "buttons" },
        this.button("Picture as shown (PNG)", `${stem}_overlay.png`, this.shown),
        this.button("Heatmap (PNG)", `${stem}.png`, () => api.heatmapPng(options, picture)),
        this.button("Numbers (npz)", `${stem}.npz`, () => api.arrays(options, picture)),
        this.button("What the network saw (PNG)", file === "digits.png" ? "digits.png" : `${stem}_seen.png`, () => Promise.resolve(seen)),
        this.button("Python", `${stem}.py`, () => Promise.resolve(python)),
      ),
      this.problem,
      code("The same in Python", answer.snippet),
      code("The same on the command line", answer.command),
      ...(answer.check ? [code("Check: does the map add up?", answer.check)] : []),
      ...(answer.plan ? [code("The plan: the rule of each layer, and why", answer.plan)] : []),
    );
  }

  private button(words: string, name: string, get: () => Promise<Blob>): HTMLElement {
    return saving(words, name, get, (said) => {
      this.problem.textContent = said;
      this.problem.hidden = false;
    });
  }
}

// A button that writes a file.
export function saving(words: string, name: string, get: () => Promise<Blob>, refused: (said: string) => void): HTMLElement {
  const button = make("button", { type: "button" }, words);
  button.addEventListener("click", () => {
    button.disabled = true;
    get()
      .then((blob) => save(blob, name))
      .catch((error: unknown) => refused(error instanceof Error ? error.message : String(error)))
      .finally(() => (button.disabled = false));
  });
  return button;
}

export function code(words: string, text: string): HTMLElement {
  const copy = make("button", { type: "button", class: "copy" }, "Copy");
  copy.addEventListener("click", () => {
    void navigator.clipboard.writeText(text).then(
      () => (copy.textContent = "Copied"),
      () => (copy.textContent = "Select it and copy"),
    );
  });
  return make("details", {}, make("summary", {}, words), copy, make("pre", { tabindex: "0" }, text));
}

function save(blob: Blob, name: string): void {
  const address = URL.createObjectURL(blob);
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
