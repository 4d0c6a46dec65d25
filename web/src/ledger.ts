// Where the score went: one bar for the whole, then a bar for every layer from the answer down to the picture.

import type { Account, Layer } from "./api";
import { make, percent, shown } from "./dom";

const QUIET = new Set(["pass", "carry"]); // steps that only hand on

export class Ledger {
  readonly element = make("section", { class: "ledger" });
  private every = false;
  private chosen = "";
  private readonly list = make("ol", { class: "layers" });

  constructor(private readonly pick: (node: string) => void) {}

  // A method that does not split the score has no account, and none is shown.
  show(account: Account | null, layers: Layer[]): void {
    this.element.hidden = !account;
    this.element.replaceChildren();
    if (!account) return;
    const whole = make("div", { class: "whole", "aria-hidden": "true" });
    const words = make("ul", { class: "parts" });
    const parted = account.shared > 0;
    for (const [name, part, label] of [
      ["input", account.input, parted ? "the picture, where the class is distinctive" : "the picture"],
      ["shared", account.shared, "the picture, where rivals have evidence as well"],
      ["bias", account.bias, "biases and other constants of the network"],
      ["dropped", account.dropped, "dropped (no rule could distribute it)"],
    ] as const) {
      if (part === 0 && name !== "input" && name !== "bias") continue;
      const bar = make("span", { class: name });
      bar.style.width = width(part, account.score);
      whole.append(bar);
      words.append(
        make("li", {}, make("span", { class: `dot ${name}` }), `${percent(part, account.score)} ${label} (${shown(part)})`),
      );
    }
    if (account.returned > 0) {
      words.append(make("li", {}, `${percent(account.returned, account.score)} of the score was absorbed by biases and redistributed to the picture.`));
    }
    this.element.append(
      make("h3", {}, "Where the score went"),
      make("p", { class: "sum" }, `The score, ${shown(account.score)}, is the sum of:`),
      whole,
      words,
    );
    if (layers.length) this.showLayers(account, layers);
  }

  // The layer whose map is shown above.
  choose(node: string): void {
    this.chosen = node;
    for (const button of this.list.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.dataset["node"] === node));
    }
  }

  private showLayers(account: Account, layers: Layer[]): void {
    const every = make("input", { type: "checkbox" });
    every.checked = this.every;
    every.addEventListener("change", () => {
      this.every = every.checked;
      this.fill(account, layers);
    });
    this.fill(account, layers);
    this.element.append(
      make("h3", {}, "Layer by layer"),
      make(
        "p",
        { class: "soft" },
        "From the answer (top) down to the picture (bottom). Each bar is the relevance that arrived at a layer, in per cent of the score: red was passed on, grey was absorbed by biases. Choose a layer to see its relevance over the photograph.",
      ),
      make("label", { class: "every" }, every, " also list layers that only pass relevance on"),
      make("div", { class: "scroll", tabindex: "-1" }, this.list),
    );
  }

  private fill(account: Account, layers: Layer[]): void {
    const answer = layers[0];
    this.list.replaceChildren(
      ...visible(layers, this.every).map((layer) => {
        const bar = make("span", { class: "bar", "aria-hidden": "true" });
        for (const [name, part] of [
          ["input", layer.onward],
          ["bias", layer.bias],
          ["dropped", layer.dropped],
        ] as const) {
          const piece = make("span", { class: name });
          piece.style.width = width(part, account.score);
          bar.append(piece);
        }
        const words = [
          make("span", { class: "name" }, layer.module || layer.node, make("small", {}, ` ${layer.op}, ${layer.rule}`)),
          bar,
          make("span", { class: "number" }, percent(layer.arrived, account.score)),
          make("span", { class: "visually-hidden" }, ` of the score arrived; biases absorbed ${percent(layer.bias, account.score)}`),
        ];
        // The relevance of the answer is the score, one number: no map to choose.
        if (layer === answer) return make("li", {}, make("div", { class: "row" }, ...words));
        const button = make(
          "button",
          { type: "button", class: "row", "aria-pressed": String(layer.node === this.chosen), "data-node": layer.node },
          ...words,
        );
        button.addEventListener("click", () => this.pick(layer.node));
        return make("li", {}, button);
      }),
    );
  }
}

// Without the steps that only hand on.
export function visible(layers: Layer[], every: boolean): Layer[] {
  return layers.filter((layer, k) => every || k === 0 || !QUIET.has(layer.rule) || layer.bias > 0);
}

function width(part: number, whole: number): string {
  return `${Math.max(0, Math.min(100, whole > 0 ? (100 * part) / whole : 0))}%`;
}
