// A network of one's own: an ONNX file is read after a question, with the preprocessing that the user says.

import * as api from "./api";
import { byId, make } from "./dom";
import { field } from "./settings";

const USUAL: Record<string, string> = {
  size: "224",
  resize: "256",
  channels: "RGB",
  white: "1",
  mean: "0.485,0.456,0.406",
  std: "0.229,0.224,0.225",
  interpolation: "bilinear",
};

export class NetworkDialog {
  private readonly dialog = byId<HTMLDialogElement>("network-dialog");

  constructor(
    private readonly most: number,
    private readonly loaded: (model: api.Model) => void,
    private readonly refused: (words: string) => void,
  ) {
    const input = byId<HTMLInputElement>("network-file");
    input.addEventListener("change", () => {
      if (input.files?.[0]) this.ask(input.files[0]);
      input.value = "";
    });
    byId("open-network").addEventListener("click", () => input.click());
  }

  // Nothing is sent before the user has said how photographs are prepared, and agreed.
  ask(file: File): void {
    const size = `${(file.size / 2 ** 20).toFixed(1)} MiB`;
    if (!/\.onnx$/i.test(file.name)) {
      this.refused(`${file.name} is not an ONNX file; the page opens only ONNX files. For other files: deeptaylor serve --model FILE.`);
      return;
    }
    if (file.size > this.most) {
      this.refused(`${file.name} is too large: ${size}; at most ${this.most / 2 ** 20} MiB are accepted. Give it to the command: deeptaylor serve --model FILE.`);
      return;
    }
    const form = make("form", { method: "dialog" });
    const problem = make("p", { class: "error", role: "alert", hidden: true });
    const go = make("button", { type: "submit", class: "main" }, "Read and explain it");
    form.append(
      make("h2", { id: "network-title" }, `Explain the network ${file.name}?`),
      make("p", {}, `The file (${size}) is sent to the program behind this page, on this machine. It is read as a list of known operations; no code in it is run. It replaces the network that was opened here before, and it is not kept when the program ends.`),
      make("p", {}, "The file does not say how photographs were preprocessed in training. Wrong values give wrong answers and no error. Please fill in:"),
      make("button", { type: "button", class: "small usual", click: () => fill(form) }, "Fill in what is usual for ImageNet"),
      ...fields(),
      problem,
      make("div", { class: "buttons" }, go, make("button", { type: "button", click: () => this.dialog.close() }, "Cancel")),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      go.disabled = true;
      const said = { ...(Object.fromEntries(new FormData(form)) as api.Options), file: file.name.slice(-200) };
      api
        .dropNetwork(said, file)
        .then((model) => {
          this.dialog.close();
          this.loaded(model);
        })
        .catch((error: unknown) => {
          problem.textContent = error instanceof Error ? error.message : String(error);
          problem.hidden = false;
          go.disabled = false;
        });
    });
    this.dialog.replaceChildren(form);
    this.dialog.showModal();
  }
}

function fill(form: HTMLFormElement): void {
  for (const [name, value] of Object.entries(USUAL)) (form.elements.namedItem(name) as HTMLInputElement).value = value;
}

function fields(): HTMLElement[] {
  const text = (name: string, placeholder: string): HTMLElement =>
    make("input", { name, required: true, maxlength: "100", placeholder, autocomplete: "off", spellcheck: "false" });
  const select = (name: string, every: [string, string][]): HTMLElement =>
    make("select", { name, required: true }, make("option", { value: "" }, "please choose"), ...every.map(([value, words]) => make("option", { value }, words)));
  return [
    make(
      "div",
      { class: "grid" },
      field("Size, in pixels", text("size", "a side, or 224x320"), "the centre crop that the network sees"),
      field("Resized first to", text("resize", "the short side, or 256x340"), "in pixels"),
      field("Channels", select("channels", [["RGB", "red, green, blue"], ["BGR", "blue, green, red"], ["L", "gray"]])),
      field("White is", select("white", [["1", "1"], ["255", "255"]]), "before the mean is subtracted"),
      field("Mean", text("mean", "one number, or one for each channel"), "subtracted"),
      field("Standard deviation", text("std", "one number, or one for each channel"), "divided by"),
      field("Interpolation", select("interpolation", [["bilinear", "bilinear"], ["bicubic", "bicubic"], ["nearest", "nearest"]])),
      field("Class names", select("names", [["none", "by their numbers"], ["imagenet", "the thousand names of ImageNet"], ["typed", "as typed below"]])),
      field("Their names", make("input", { name: "typed", maxlength: "4000", placeholder: "cat, dog, bird", autocomplete: "off", spellcheck: "false" }), "in the order of the outputs, separated by commas"),
    ),
  ];
}
