// A second explanation beside the first: the same question but for one thing.

import type { Answer, Model, Options } from "./api";
import { byId, make } from "./dom";
import { APART, BIASES, METHODS } from "./settings";

const KINDS: [string, string][] = [
  ["", "nothing"],
  ["target", "another class"],
  ["model", "another network"],
  ["method", "another method"],
  ["bias", "the same method with other handling of biases"],
];

export class Compare {
  private readonly kinds = byId<HTMLSelectElement>("compare");
  private readonly beside = byId<HTMLSelectElement>("beside");
  private readonly same = byId<HTMLInputElement>("same-scale");

  constructor(
    private readonly models: () => Model[],
    changed: () => void,
    repaint: () => void,
  ) {
    this.kinds.append(...KINDS.map(([value, words]) => make("option", { value }, words)));
    this.kinds.addEventListener("change", () => {
      this.beside.replaceChildren();
      changed();
    });
    this.beside.addEventListener("change", changed);
    this.same.addEventListener("change", repaint);
  }

  get wanted(): boolean {
    return this.kinds.value !== "" && this.beside.value !== "";
  }

  // The network of the second explanation.
  get model(): string {
    return this.kinds.value === "model" ? this.beside.value : "";
  }

  // What can stand beside an answer that was made with biases treated so; the choice stays where it can.
  offer(answer: Answer | null, bias = ""): void {
    byId("compare-section").hidden = !answer;
    if (!answer) return;
    for (const option of this.kinds.options) option.hidden = option.disabled = !fits(option.value, answer);
    if (this.kinds.selectedOptions[0]?.disabled) this.kinds.value = "";
    const before = this.beside.value;
    const every = this.choices(answer, bias);
    this.beside.replaceChildren(...every.map(([value, words]) => make("option", { value }, words)));
    this.beside.value = every.some(([value]) => value === before) ? before : (every[0]?.[0] ?? "");
    byId("beside-label").hidden = !this.kinds.value;
  }

  // The second question: the first but for one thing.
  instead(answer: Answer, asked: Options): Options {
    const kind = this.kinds.value;
    // The question stays the same where the first answer took the most probable class by itself.
    const target = answer.target === null ? "" : String(answer.target);
    if (kind === "target") return { target: this.beside.value, against: "" };
    if (kind === "model") return { model: this.beside.value, target: answer.target_name };
    if (kind === "method" && !APART.has(this.beside.value)) return { method: this.beside.value, target, question: "evidence", against: "" };
    const deep: Options = kind === "bias" ? { method: "deep-taylor" } : {};
    return { ...deep, target, [kind]: this.beside.value, against: asked["against"] ?? "" };
  }

  // One scale for both, where both are parts of the same network's scores; null where each has its own.
  shared(first: Answer | null, second: Answer | null): number | null {
    const can = first !== null && second !== null && first.model === second.model && first.account !== null && second.account !== null;
    byId("same-label").hidden = !can;
    return can && this.same.checked ? Math.max(first.heat.scale, second.heat.scale) : null;
  }

  private choices(answer: Answer, bias: string): [string, string][] {
    switch (this.kinds.value) {
      case "target":
        return answer.classes.filter(({ index }) => index !== answer.target).map(({ index, name }) => [String(index), name]);
      case "model":
        return this.models().filter(({ name }) => name !== answer.model).map(({ name, title }) => [name, title]);
      case "method":
        return METHODS.filter(([value]) => value !== answer.method && value !== "auto").map(([value, words]) => [value, words]);
      case "bias":
        return BIASES.filter(([value]) => value !== bias);
      default:
        return [];
    }
  }
}

// Classes are compared where there are some, biases where the method knows them.
function fits(kind: string, answer: Answer): boolean {
  if (kind === "target") return answer.classes.length > 1;
  return kind !== "bias" || answer.method === "deep-taylor";
}
