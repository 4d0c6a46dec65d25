// Where the score went: one bar for the whole, then a bar for every layer from the answer down to the picture.

import type { Account, Layer, LayerAnswer } from "./api";
import { paintHeat } from "./colours";
import { make, percent, shown } from "./dom";

const QUIET = new Set(["pass", "carry"]); // steps that only hand on

export class Ledger {
  readonly element = make("section", { class: "ledger" });
  private every = false;
  private chosen = "";
  private readonly list = make("ol", { class: "layers" });
  private readonly layer = make("div", { class: "layer", "aria-live": "polite" });

  constructor(private readonly pick: (node: string) => void) {}

  show(account: Account, layers: Layer[]): void {
    this.chosen = "";
    this.layer.replaceChildren();
    const whole = make("div", { class: "whole", "aria-hidden": "true" });
    const words = make("ul", { class: "parts" });
    for (const [name, part, label] of [
      ["input", account.input, "the picture"],
      ["bias", account.bias, "biases and other constants of the network"],
      ["dropped", account.dropped, "dropped (no rule could hand it on)"],
      ["residual", account.residual, "not handed out by this method"],
    ] as const) {
      if (part === 0 && name !== "input" && name !== "bias") continue;
      const bar = make("span", { class: name });
      bar.style.width = `${Math.max(0, Math.min(100, account.score > 0 ? (100 * part) / account.score : 0))}%`;
      whole.append(bar);
      words.append(
        make("li", {}, make("span", { class: `dot ${name}` }), `${percent(part, account.score)} ${label} (${shown(part)})`),
      );
      if (name === "input" && account.returned > 0) {
        words.append(make("li", {}, `of which biases handed back ${percent(account.returned, account.score)}`));
      }
    }
    this.element.replaceChildren(
      make("h4", {}, "Where the score went"),
      make("p", { class: "sum" }, `The score, ${shown(account.score)}, is the sum of:`),
      whole,
      words,
    );
    if (!layers.length) return;
    const every = make("input", { type: "checkbox" });
    every.checked = this.every;
    every.addEventListener("change", () => {
      this.every = every.checked;
      this.fill(account, layers);
    });
    this.fill(account, layers);
    this.element.append(
      make("h4", {}, "Layer by layer"),
      make(
        "p",
        { class: "soft" },
        "From the answer (top) down to the picture (bottom). Each bar is what arrived at a layer: red went on, grey stayed with biases. Choose a layer below the answer to see its relevance.",
      ),
      make("label", { class: "every" }, every, " also steps that only hand on"),
      make("div", { class: "scroll", tabindex: "-1" }, this.list),
      this.layer,
    );
  }

  private fill(account: Account, layers: Layer[]): void {
    const answer = layers[0];
    const rows = layers.filter((layer) => this.every || layer === answer || !QUIET.has(layer.rule) || layer.bias > 0);
    this.list.replaceChildren(
      ...rows.map((layer) => {
        const bar = make("span", { class: "bar", "aria-hidden": "true" });
        for (const [name, part] of [
          ["input", layer.onward],
          ["bias", layer.bias],
          ["dropped", layer.dropped],
        ] as const) {
          const piece = make("span", { class: name });
          piece.style.width = `${Math.max(0, Math.min(100, account.score > 0 ? (100 * part) / account.score : 0))}%`;
          bar.append(piece);
        }
        const name = layer.module || layer.node;
        const words = [
          make("span", { class: "name" }, name, make("small", {}, ` ${layer.op}, ${layer.rule}`)),
          bar,
          make("span", { class: "number" }, percent(layer.arrived, account.score)),
          make("span", { class: "visually-hidden" }, ` of the score arrived; biases took ${percent(layer.bias, account.score)}`),
        ];
        // The relevance of the answer is the score, one number: no map to choose.
        if (layer === answer) return make("li", {}, make("div", { class: "row" }, ...words));
        const button = make(
          "button",
          { type: "button", class: "row", "aria-pressed": String(layer.node === this.chosen), "data-node": layer.node },
          ...words,
        );
        button.addEventListener("click", () => {
          this.chosen = layer.node;
          for (const other of this.list.querySelectorAll("button")) {
            other.setAttribute("aria-pressed", String(other === button));
          }
          this.layer.replaceChildren(make("p", { class: "soft" }, "…"));
          this.pick(layer.node);
        });
        return make("li", {}, button);
      }),
    );
  }

  showLayer(answer: LayerAnswer, score: number): void {
    const canvas = make("canvas", { role: "img", class: answer.heat.height === 1 ? "strip" : "" });
    const size = answer.shape.join(" × ");
    const flat = answer.heat.height === 1 ? "one stripe a neuron" : "summed over channels";
    const words = `Relevance at ${answer.node}: ${size} neurons, ${flat}; together ${shown(answer.total)}, ${percent(answer.total, score)} of the score.`;
    canvas.setAttribute("aria-label", words);
    paintHeat(canvas, answer.heat);
    this.layer.replaceChildren(make("figure", {}, canvas, make("figcaption", {}, words)));
  }

  fail(words: string): void {
    this.layer.replaceChildren(make("p", { class: "error" }, words));
  }
}
