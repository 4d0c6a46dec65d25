// The page: choose a network, give it a picture, look at one explanation or two.

import * as api from "./api";
import { byId, make } from "./dom";
import { Pad, wireWriting } from "./pad";
import { Panel } from "./panel";

const TYPES = "image/jpeg,image/png,image/webp,image/gif,image/bmp,image/tiff";

class Page {
  private model: api.Model | null = null;
  private picture: Blob | null = null;
  private file = "";
  private target = "";
  private guessed: Blob | null = null; // the picture that the guesses belong to
  private names: string[] = [];
  private readonly panels: Panel[] = [];
  private readonly select = byId<HTMLSelectElement>("model");
  private readonly status = byId("model-status");
  private readonly progress = byId<HTMLProgressElement>("model-progress");
  private readonly problem = byId("problem");
  private readonly compare = byId<HTMLInputElement>("compare");
  private readonly same = byId<HTMLInputElement>("same-scale");
  private readonly pad = new Pad(() => this.drawn());

  constructor(private readonly offer: api.Models) {
    for (const kind of ["photograph", "digits"] as const) {
      const group = make("optgroup", { label: kind === "digits" ? "Drawn digits" : "Photographs" });
      for (const model of offer.models.filter((m) => m.kind === kind)) {
        group.append(make("option", { value: model.name }, model.title));
      }
      if (group.children.length) this.select.append(group);
    }
    this.select.value = offer.chosen;
    this.select.addEventListener("change", () => void this.choose());
    this.panels.push(this.panel("Explanation"));
    byId("panels").append(this.panels[0]!.element);
    this.wirePhotograph();
    wireWriting(this.pad, () => {
      this.picture = null;
      for (const panel of this.panels) panel.clear();
      byId("result").hidden = true;
    });
    this.compare.addEventListener("change", () => this.second(this.compare.checked));
    this.same.addEventListener("change", () => this.repaint());
    byId<HTMLFormElement>("other-class").addEventListener("submit", (event) => this.otherClass(event));
    void this.choose();
  }

  private panel(label: string): Panel {
    const compare = label === "Explanation" ? () => this.compareBiases() : null;
    return new Panel(label, this.offer.rules, { done: (panel) => this.done(panel), refused: (words) => this.refuse(words), compare });
  }

  // --- the network ---------------------------------------------------------------------------------------------------

  private async choose(): Promise<void> {
    const name = this.select.value;
    this.model = null;
    this.names = [];
    this.target = "";
    for (const panel of this.panels) panel.clear();
    byId("result").hidden = true;
    this.guessed = null;
    this.say("");
    this.sayOfPicture("");
    const known = this.offer.models.find((m) => m.name === name)!;
    byId("about").textContent = known.about;
    byId("photograph").hidden = known.kind !== "photograph";
    byId("digits").hidden = known.kind !== "digits";
    const kept = this.picture && (this.file === "digits.png") === (known.kind === "digits");
    if (!kept) this.picture = null;
    if (known.kind === "digits" && !this.pad.empty) {
      this.picture = this.pad.picture();
      this.file = "digits.png";
    }
    byId("preview").hidden = known.kind === "digits" || !this.picture;
    byId("file-name").textContent = known.kind === "digits" || !this.picture ? "" : this.file;
    try {
      let model = await api.loadModel(name);
      while (model.state === "loading" && this.select.value === name) {
        this.progress.hidden = false;
        this.status.textContent = `Loading: ${model.message}, ${Math.round(model.seconds)} s`;
        await new Promise((done) => setTimeout(done, 400));
        model = await api.getModel(name);
      }
      if (this.select.value !== name) return;
      this.progress.hidden = true;
      this.status.textContent = model.state === "ready" ? "Ready." : "";
      if (model.state !== "ready") {
        this.say(model.message);
        return;
      }
      this.model = model;
      if (model.kind === "photograph") this.names = await api.getClasses(name);
      const list = byId("class-names");
      list.replaceChildren(...this.names.map((words, k) => make("option", { value: `${k}: ${words}` })));
      this.explain();
    } catch (error) {
      this.progress.hidden = true;
      this.status.textContent = "";
      this.say(error instanceof Error ? error.message : String(error));
    }
  }

  // --- the picture ---------------------------------------------------------------------------------------------------

  private wirePhotograph(): void {
    const input = byId<HTMLInputElement>("file");
    const drop = byId("drop");
    input.accept = TYPES;
    input.addEventListener("change", () => {
      if (input.files?.[0]) this.take(input.files[0]);
      input.value = "";
    });
    byId("pick").addEventListener("click", () => input.click());
    for (const kind of ["dragenter", "dragover"]) {
      document.addEventListener(kind, (event) => {
        event.preventDefault();
        drop.classList.add("over");
      });
    }
    for (const kind of ["dragleave", "drop"]) {
      document.addEventListener(kind, (event) => {
        event.preventDefault();
        drop.classList.remove("over");
      });
    }
    document.addEventListener("drop", (event) => {
      const file = event.dataTransfer?.files[0];
      if (file && !byId("photograph").hidden) this.take(file);
    });
    document.addEventListener("paste", (event) => {
      const file = event.clipboardData?.files[0];
      if (file && !byId("photograph").hidden) this.take(file);
    });
  }

  private take(file: File): void {
    const most = this.offer.limits.bytes;
    if (file.size > most) {
      this.refuse(`${file.name} is too large: ${(file.size / 2 ** 20).toFixed(1)} MiB; at most ${most / 2 ** 20} MiB are taken.`);
      return;
    }
    this.picture = file;
    this.file = file.name.slice(0, 200);
    this.target = "";
    byId("file-name").textContent = file.name;
    const preview = byId<HTMLImageElement>("preview");
    URL.revokeObjectURL(preview.src);
    preview.src = URL.createObjectURL(file);
    preview.alt = `Your picture, ${file.name}`;
    preview.hidden = false;
    this.say("");
    this.sayOfPicture("");
    this.explain();
  }

  // Said where the picture was chosen; what belongs to the one before must not be taken for this one's.
  private refuse(words: string): void {
    this.picture = this.guessed = null;
    for (const panel of this.panels) panel.clear();
    byId("result").hidden = true;
    byId("preview").hidden = true;
    byId("file-name").textContent = "";
    this.sayOfPicture(words);
    byId("picture-problem").scrollIntoView({ block: "nearest" });
  }

  private drawn(): void {
    this.picture = this.pad.picture();
    this.file = "digits.png";
    this.target = "";
    this.explain();
  }

  // --- the explanations ----------------------------------------------------------------------------------------------

  private explain(only?: Panel): void {
    if (!this.model || !this.picture) return;
    byId("result").hidden = false;
    byId("answer").hidden = this.model.kind === "digits" || !this.guessed;
    for (const panel of only ? [only] : this.panels) {
      panel.withClasses(this.model.kind !== "digits");
      void panel.explain({ model: this.model.name, picture: this.picture, file: this.file, target: this.target });
    }
  }

  private done(panel: Panel): void {
    this.repaint();
    if (panel !== this.panels[0]) return;
    if (panel.answer) this.guessed = this.picture;
    byId("answer").hidden = this.model?.kind === "digits" || this.guessed !== this.picture;
    if (!panel.answer) return;
    const { classes, target } = panel.answer;
    // The buttons are made anew; the keyboard stays where it was.
    const focused = [...byId("classes").querySelectorAll("button")].findIndex((b) => b === document.activeElement);
    byId("classes").replaceChildren(
      ...classes.map((found) => {
        const chosen = found.index === target;
        const meter = make("meter", { min: "0", max: "1", "aria-hidden": "true" });
        meter.value = found.probability;
        const button = make(
          "button",
          { type: "button", "aria-pressed": String(chosen) },
          make("span", {}, found.name),
          meter,
          make("span", { class: "number" }, `${(100 * found.probability).toFixed(1)} %`),
        );
        button.addEventListener("click", () => this.ask(found.index));
        return make("li", {}, button);
      }),
    );
    byId("classes").querySelectorAll("button")[focused]?.focus();
    const outside = target !== null && classes.every((found) => found.index !== target);
    byId("asked").textContent = outside ? `Explained: ${panel.answer.target_name}, which is not among the five.` : "";
  }

  private ask(index: number): void {
    this.target = String(index);
    this.explain();
  }

  private otherClass(event: Event): void {
    event.preventDefault();
    const words = byId<HTMLInputElement>("class-name").value.trim();
    const number = /^\d+/.exec(words)?.[0];
    const index = number !== undefined ? Number(number) : this.names.findIndex((name) => name.toLowerCase() === words.toLowerCase());
    if (index < 0 || index >= this.names.length) {
      byId("asked").textContent = `No class is called “${words}”. Choose one from the list, or give a number below ${this.names.length}.`;
      return;
    }
    this.ask(index);
  }

  private compareBiases(): void {
    this.compare.checked = true;
    this.second(true);
  }

  private second(wanted: boolean): void {
    byId("same-label").hidden = !wanted;
    byId("panels").classList.toggle("two", wanted);
    if (!wanted) {
      const removed = this.panels.splice(1, 1)[0];
      removed?.clear();
      removed?.element.remove();
      this.repaint();
      return;
    }
    if (this.panels.length > 1) return;
    const panel = this.panel("Second explanation");
    panel.set("bias", this.panels[0]!.get("bias") === "spread" ? "returned" : "spread");
    this.panels.push(panel);
    byId("panels").append(panel.element);
    this.explain(panel);
  }

  // With one colour scale for both, equal colours are equal relevances.
  private repaint(): void {
    const scales = this.panels.flatMap((panel) => (panel.answer ? [panel.answer.heat.scale] : []));
    const shared = this.same.checked && this.panels.length > 1 && scales.length ? Math.max(...scales) : undefined;
    for (const panel of this.panels) panel.repaint(shared);
  }

  private say(words: string): void {
    this.problem.textContent = words;
    this.problem.hidden = !words;
  }

  private sayOfPicture(words: string): void {
    byId("picture-problem").textContent = words;
    byId("picture-problem").hidden = !words;
  }
}

async function start(): Promise<void> {
  api.takeToken();
  try {
    new Page(await api.getModels());
    document.body.dataset["ready"] = "yes";
  } catch (error) {
    const problem = byId("problem");
    problem.textContent = error instanceof Error ? error.message : String(error);
    problem.hidden = false;
    document.querySelector<HTMLElement>(".choose")!.hidden = true;
  }
}

void start();
