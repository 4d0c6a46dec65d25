// How an explanation is made: the method, what becomes of biases, and the rules.

import type { Options } from "./api";
import { byId, make, newId } from "./dom";

export const METHODS: [string, string, string][] = [
  ["auto", "Automatic", "the method that fits this network; the answer says which one and why"],
  ["deep-taylor", "Deep Taylor decomposition", "splits the score, layer by layer, down to the pixels"],
  ["paper", "Deep Taylor, as in the paper", "biases keep their share of the score; averages count as pooling"],
  ["secant", "Secants", "the exact difference from the picture’s own mean colour: red raises the score, blue lowers it"],
  ["attnlrp", "AttnLRP", "for attention: each factor of a product gets half; the softmax is replaced by its tangent"],
  ["cp-lrp", "CP-LRP", "treats attention and norms as constants; every layer uses the z rule"],
  ["sensitivity", "Sensitivity", "where a small change would matter most: the squared gradient"],
  ["taylor", "Taylor at the nearest root", "compares with the nearest picture that has a low score; takes some seconds"],
];
export const BIASES: [string, string][] = [
  ["returned", "redistribute their share to the pixels"],
  ["neuron", "keep their share, as in the paper"],
  ["spread", "return their share to the inputs of each neuron"],
];
// Methods whose map of a score below zero is not empty.
export const OF_ANY_SCORE = new Set(["secant", "attnlrp", "sensitivity"]);
// Methods that set a class apart from others.
export const APART = new Set(["auto", "deep-taylor", "paper", "cp-lrp", "secant"]);
const DEEP = ["bias", "max_pool", "first", "above", "rules"];

export class Settings {
  private readonly form = byId<HTMLFormElement>("settings");

  constructor(rules: string[], changed: () => void) {
    const known = newId("rules");
    const list = make("datalist", { id: known }, ...rules.map((rule) => make("option", { value: EXAMPLES[rule] ?? rule })));
    const method = make("select", { name: "method" }, ...METHODS.map(([value, words]) => make("option", { value }, words)));
    const level = field("Level of the root", make("input", { name: "level", type: "number", min: "0", max: "0.99", step: "0.01", value: "0.1" }), "the score at the root, as a fraction of the picture’s score");
    level.classList.add("taylor");
    const biases = BIASES.map(([value, words], k) => {
      const input = make("input", { type: "radio", name: "bias", value });
      input.checked = input.defaultChecked = k === 0;
      return make("label", {}, input, ` ${words}`);
    });
    this.form.append(
      field("Explain with", method, " "),
      level,
      make("fieldset", { class: "deep" }, make("legend", {}, "Biases of the network"), ...biases),
      make(
        "details",
        { class: "deep" },
        make("summary", {}, "Rules"),
        field("First layer’s rule", rule("first", known), "empty: chosen by the range of the pixels (z^B)"),
        field("Rule of the other layers", rule("above", known), "empty: chosen by each layer’s inputs (z⁺)"),
        field(
          "Rules for single layers",
          make("input", { name: "rules", maxlength: "2000", placeholder: "conv10=eps:0.25; fire*=z+", autocomplete: "off", spellcheck: "false" }),
          "layer=rule, separated by semicolons; * matches anything",
        ),
        field(
          "Max pooling",
          make("select", { name: "max_pool" }, make("option", { value: "proportional" }, "in proportion to activations"), make("option", { value: "winner" }, "the winner takes all")),
        ),
        list,
      ),
    );
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("change", () => {
      this.adapt();
      changed();
    });
    this.adapt();
  }

  get method(): string {
    return this.get("method");
  }

  get bias(): string {
    return this.get("bias");
  }

  // `instead` takes the place of some of it.
  options(instead: Options = {}): Options {
    return known({ ...(Object.fromEntries(new FormData(this.form)) as Options), ...instead });
  }

  private get(name: string): string {
    return String(new FormData(this.form).get(name) ?? "");
  }

  private adapt(): void {
    this.form.querySelector("small")!.textContent = METHODS.find(([value]) => value === this.method)![2];
    for (const part of this.form.querySelectorAll<HTMLElement>(".deep")) part.hidden = this.method !== "deep-taylor";
    for (const part of this.form.querySelectorAll<HTMLElement>(".taylor")) part.hidden = this.method !== "taylor";
  }
}

// What a method compares a picture with.
const REFERENCES: Record<string, string> = {
  secant: "the picture’s own mean colour",
  taylor: "the nearest picture with a low score",
};

// How an answer was made, in words: the method, its reference, and what becomes of biases.
export function made(method: string, bias: string | null): string {
  const named = METHODS.find(([value]) => value === method)?.[1] ?? method;
  const biases = BIASES.find(([value]) => value === bias)?.[1];
  return `Method: ${named}. Reference: ${REFERENCES[method] ?? "none"}.${biases ? ` Biases ${biases}.` : ""}`;
}

// Only what the method knows.
function known(options: Options): Options {
  if (options["method"] !== "deep-taylor") for (const name of DEEP) delete options[name];
  if (options["method"] !== "taylor") delete options["level"];
  return options;
}

const EXAMPLES: Record<string, string> = { eps: "eps:0.25", gamma: "gamma:0.25", ab: "ab:2,1" };

function rule(name: string, list: string): HTMLInputElement {
  return make("input", { name, list, maxlength: "200", placeholder: "automatic", autocomplete: "off", spellcheck: "false" });
}

export function field(words: string, input: HTMLElement, hint = ""): HTMLLabelElement {
  const label = make("label", { class: "field" }, make("span", {}, words), input);
  if (hint) label.append(make("small", {}, hint));
  return label;
}
