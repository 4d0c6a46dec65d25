// One explanation: how it is made, what it shows, where the score went, and the same for others to repeat.

import * as api from "./api";
import { context } from "./colours";
import { make, newId, shown } from "./dom";
import { Ledger } from "./ledger";
import { View } from "./view";

// What both panels explain: the picture, and what is asked about it.
export interface Subject {
  model: string;
  picture: Blob;
  file: string;
  target: string;
}

const METHODS: [string, string, string][] = [
  ["deep-taylor", "Deep Taylor decomposition", "splits the score, layer by layer, down to the pixels"],
  ["sensitivity", "Sensitivity", "where a small change would matter most: the squared gradient"],
  ["taylor", "Taylor at the nearest root", "compares with the nearest picture that the network does not care for; takes some seconds"],
];

export class Panel {
  readonly element: HTMLElement;
  answer: api.Answer | null = null;
  seen: ImageData | null = null;
  private subject: Subject | null = null;
  private running: AbortController | null = null;
  private readonly form = make("form", { class: "settings" });
  private readonly result = make("div", { class: "result", hidden: true });
  private readonly busy = make("p", { class: "busy", role: "status" });
  private readonly warning = make("div", { class: "warning", role: "alert", hidden: true });
  private readonly heading = make("h3");
  private readonly score = make("p", { class: "score", role: "status" });
  private readonly notes = make("ul", { class: "notes" });
  private readonly view = new View();
  private readonly ledger = new Ledger((node) => void this.showLayer(node));
  private readonly more = make("div", { class: "more" });

  constructor(
    label: string,
    rules: string[],
    private readonly events: { done: (panel: Panel) => void; refused: (words: string) => void; compare: (() => void) | null },
  ) {
    this.fillForm(rules);
    this.result.append(this.warning, this.score, this.notes, this.view.element, this.ledger.element, this.more);
    this.heading.textContent = label;
    this.element = make("article", { class: "panel", "aria-label": label }, this.heading, this.form, this.busy, this.result);
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("change", () => {
      this.adapt();
      void this.run();
    });
    this.adapt();
  }

  set(name: string, value: string): void {
    const field = this.form.elements.namedItem(name);
    if (field instanceof RadioNodeList || field instanceof HTMLSelectElement || field instanceof HTMLInputElement) {
      field.value = value;
    }
    this.adapt();
  }

  get(name: string): string {
    return String(new FormData(this.form).get(name) ?? "");
  }

  // Forget what is shown: it belongs to another picture or network.
  clear(): void {
    this.running?.abort();
    this.answer = null;
    this.subject = null;
    this.result.hidden = true;
    this.busy.textContent = "";
  }

  async explain(subject: Subject): Promise<void> {
    this.subject = subject;
    await this.run();
  }

  repaint(scale?: number): void {
    if (this.answer && this.seen) {
      this.view.show(this.seen, this.answer.heat, this.answer.account.score, this.what(), scale);
    }
  }

  private what(): string {
    const rather = this.get("against");
    const named = this.answer?.target_name ? `“${this.answer.target_name}”` : "the network’s answer";
    return rather ? `${named} rather than “${rather.replace(/^\d+: /, "")}”` : named;
  }

  private options(): api.Options {
    const subject = this.subject!;
    const given = Object.fromEntries(new FormData(this.form)) as api.Options;
    if (given["method"] !== "deep-taylor") {
      for (const name of ["bias", "max_pool", "first", "above", "rules"]) delete given[name];
    }
    if (given["method"] !== "taylor") delete given["level"];
    given["against"] = /^\d+/.exec(given["against"] ?? "")?.[0] ?? "";
    return { ...given, model: subject.model, target: subject.target, file: subject.file };
  }

  private async run(): Promise<void> {
    if (!this.subject) return;
    this.running?.abort();
    const running = (this.running = new AbortController());
    const began = performance.now();
    const tick = (): void => {
      const seconds = Math.round((performance.now() - began) / 1000);
      this.busy.textContent =
        seconds < 2 ? "Explaining …" : `Explaining … ${seconds} s (new settings take a few seconds the first time)`;
    };
    tick();
    this.busy.className = "busy";
    this.element.setAttribute("aria-busy", "true");
    const clock = setInterval(tick, 1000);
    try {
      const answer = await api.explain(this.options(), this.subject.picture, running.signal);
      this.seen = await decoded(answer.seen);
      this.answer = answer;
      this.show();
      this.busy.textContent = "";
      this.events.done(this);
    } catch (error) {
      if (running.signal.aborted) return;
      if (error instanceof api.ServerError && error.ofPicture) {
        this.events.refused(error.message);
        return;
      }
      this.busy.textContent = error instanceof Error ? error.message : String(error);
      this.busy.className = "busy error";
      this.result.hidden = true;
      this.answer = null;
      this.events.done(this);
    } finally {
      clearInterval(clock);
      if (this.running === running) this.element.removeAttribute("aria-busy");
    }
  }

  private show(): void {
    const answer = this.answer!;
    this.result.hidden = false;
    this.warning.hidden = !answer.warning;
    this.warning.replaceChildren(...(answer.warning ? this.warn(answer) : []));
    const positive = answer.score > 0;
    this.score.textContent = positive
      ? `Why ${this.what()}? Its score is ${shown(answer.score)}; the heatmap says which pixels hold it.`
      : `The score of ${this.what()} is ${shown(answer.score)}: there is nothing to hand out.`;
    this.notes.replaceChildren(...answer.notes.map((note) => make("li", {}, note)));
    this.repaint();
    this.ledger.show(answer.account, answer.layers);
    this.fillMore(answer);
  }

  private warn(answer: api.Answer): (Node | string)[] {
    const words: (Node | string)[] = [make("p", {}, make("strong", {}, answer.warning))];
    const { score, bias, input, returned } = answer.account;
    if (answer.method === "deep-taylor" && score > 0 && bias + returned > input - returned) {
      words.push(
        make("p", {}, "Biases are numbers that the network adds whatever it sees. Each may keep its share, give it back to the inputs of its neuron, or hand it back at the end. Look at more than one before you trust a map."),
      );
      if (this.events.compare) {
        words.push(make("button", { type: "button", click: () => this.events.compare?.() }, "Compare both ways"));
      }
    }
    return words;
  }

  private async showLayer(node: string): Promise<void> {
    if (!this.subject || !this.answer) return;
    const answer = this.answer;
    try {
      const layer = await api.explainLayer(node, this.options(), this.subject.picture);
      if (this.answer === answer) this.ledger.showLayer(layer, answer.account.score);
    } catch (error) {
      if (this.answer === answer) this.ledger.fail(error instanceof Error ? error.message : String(error));
    }
  }

  // --- settings ------------------------------------------------------------------------------------------------------

  private fillForm(rules: string[]): void {
    const known = newId("rules");
    const list = make("datalist", { id: known }, ...rules.map((rule) => make("option", { value: EXAMPLES[rule] ?? rule })));
    const method = make("select", { name: "method" }, ...METHODS.map(([value, words]) => make("option", { value }, words)));
    method.addEventListener("change", () => this.adapt());
    const expert = make(
      "details",
      { class: "deep" },
      make("summary", {}, "More settings"),
      field("First layer’s rule", rule("first", known), "empty: what follows from the range of the pixels (z^B)"),
      field("Rule of the other layers", rule("above", known), "empty: what follows from each layer’s inputs (z⁺)"),
      field(
        "Rules for single layers",
        make("input", { name: "rules", maxlength: "2000", placeholder: "conv10=eps:0.25; fire*=z+", autocomplete: "off", spellcheck: "false" }),
        "layer=rule, by semicolons; * stands for anything",
      ),
      field(
        "Max pooling",
        make("select", { name: "max_pool" }, make("option", { value: "proportional" }, "in proportion to activations"), make("option", { value: "winner" }, "the winner takes all")),
      ),
      list,
    );
    const bias = make(
      "fieldset",
      { class: "deep" },
      make("legend", {}, "Biases of the network"),
      radio("bias", "returned", "hand their share back at the end", true),
      radio("bias", "neuron", "keep their share, as in the paper", false),
      radio("bias", "spread", "give it back to the inputs of each neuron", false),
    );
    this.form.append(
      field("Method", method, " "),
      bias,
      field("Rather than class", make("input", { name: "against", list: "class-names", placeholder: "none", autocomplete: "off" }), "explain the difference to another class"),
      field("Level of the root", make("input", { name: "level", type: "number", min: "0", max: "0.99", step: "0.01", value: "0.1" }), "where the score has fallen to this part"),
      expert,
    );
    this.form.querySelector("[name=level]")!.closest("label")!.classList.add("taylor");
    this.form.querySelector("[name=against]")!.closest("label")!.classList.add("classes");
  }

  // Only what the chosen method knows is shown.
  private adapt(): void {
    const method = this.get("method");
    this.form.querySelector("small")!.textContent = METHODS.find(([value]) => value === method)![2];
    for (const part of this.form.querySelectorAll<HTMLElement>(".deep")) part.hidden = method !== "deep-taylor";
    for (const part of this.form.querySelectorAll<HTMLElement>(".taylor")) part.hidden = method !== "taylor";
  }

  withClasses(has: boolean): void {
    for (const part of this.form.querySelectorAll<HTMLElement>(".classes")) part.hidden = !has;
    if (!has) this.set("against", "");
  }

  // --- downloads -----------------------------------------------------------------------------------------------------

  private fillMore(answer: api.Answer): void {
    const stem = `${this.subject!.file.replace(/\.[^.]*$/, "") || "picture"}_${answer.method}`;
    const options = this.options();
    const { picture } = this.subject!;
    const file = (words: string, name: string, get: () => Promise<Blob>): HTMLElement => {
      const button = make("button", { type: "button" }, words);
      button.addEventListener("click", () => {
        button.disabled = true;
        get()
          .then((blob) => save(blob, name))
          .catch((error: unknown) => {
            this.busy.textContent = error instanceof Error ? error.message : String(error);
            this.busy.className = "busy error";
          })
          .finally(() => (button.disabled = false));
      });
      return button;
    };
    const seen = new Blob([api.bytes(answer.seen)], { type: "image/png" });
    const text = (words: string): Promise<Blob> => Promise.resolve(new Blob([words], { type: "text/plain" }));
    this.more.replaceChildren(
      make("h4", {}, "Take it with you"),
      make(
        "div",
        { class: "buttons" },
        file("Heatmap (PNG)", `${stem}.png`, () => api.heatmapPng(options, picture)),
        file("Numbers (npz)", `${stem}.npz`, () => api.arrays(options, picture)),
        file("What the network saw (PNG)", this.subject!.file === "digits.png" ? "digits.png" : `${stem}_seen.png`, () => Promise.resolve(seen)),
        file("Python", `${stem}.py`, () => text(answer.snippet)),
      ),
      code("The same in Python", answer.snippet),
      code("The same on the command line", answer.command),
      code("Is it consistent?", answer.check),
      ...(answer.plan ? [code("The plan: which rule where, and why", answer.plan)] : []),
    );
  }
}

const EXAMPLES: Record<string, string> = { eps: "eps:0.25", gamma: "gamma:0.25", ab: "ab:2,1" };

function rule(name: string, list: string): HTMLInputElement {
  return make("input", { name, list, maxlength: "200", placeholder: "automatic", autocomplete: "off", spellcheck: "false" });
}

function field(words: string, input: HTMLElement, hint = ""): HTMLLabelElement {
  const label = make("label", { class: "field" }, make("span", {}, words), input);
  if (hint) label.append(make("small", {}, hint));
  return label;
}

function radio(name: string, value: string, words: string, checked: boolean): HTMLLabelElement {
  const input = make("input", { type: "radio", name, value });
  input.checked = input.defaultChecked = checked;
  return make("label", {}, input, ` ${words}`);
}

function code(words: string, text: string): HTMLElement {
  const copy = make("button", { type: "button", class: "copy" }, "Copy");
  copy.addEventListener("click", () => {
    void navigator.clipboard.writeText(text).then(
      () => (copy.textContent = "Copied"),
      () => (copy.textContent = "Select it and copy"),
    );
  });
  return make("details", {}, make("summary", {}, words), copy, make("pre", { tabindex: "0" }, text));
}

export function save(blob: Blob, name: string): void {
  const address = URL.createObjectURL(blob);
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

async function decoded(png: string): Promise<ImageData> {
  const bitmap = await createImageBitmap(new Blob([api.bytes(png)], { type: "image/png" }));
  const canvas = make("canvas");
  canvas.width = bitmap.width;
  canvas.height = bitmap.height;
  context(canvas).drawImage(bitmap, 0, 0);
  return context(canvas).getImageData(0, 0, bitmap.width, bitmap.height);
}
