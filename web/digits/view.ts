// Input, heatmap and overlay side by side: point at a pixel, or move with the arrow keys, to read its relevance.

import { context, paintHeat, paintOverlay, where, type Heat } from "../src/colours";
import { make, newId, percent, shown, TOUCHED } from "../src/dom";

export class View {
  readonly element = make("div", { class: "view" });
  private readonly canvases: HTMLCanvasElement[] = [];
  private readonly marks: HTMLElement[] = [];
  private readonly readout: HTMLElement;
  private readonly slider: HTMLInputElement;
  private heat: Heat | null = null;
  private seen: ImageData | null = null;
  private score = 0;
  private at: [number, number] | null = null;
  private scale = 1;

  constructor() {
    const row = make("div", { class: "pictures" });
    const hint = newId("hint");
    for (const [name, words] of [
      ["input", "What the network saw"],
      ["heatmap", "Relevance of each pixel"],
      ["overlay", "Both"],
    ] as const) {
      const canvas = make("canvas", { class: name, role: "img", tabindex: name === "heatmap" ? "0" : "-1" });
      if (name === "heatmap") canvas.setAttribute("aria-describedby", hint);
      const mark = make("span", { class: "mark", hidden: true, "aria-hidden": "true" });
      this.canvases.push(canvas);
      this.marks.push(mark);
      row.append(make("figure", {}, make("div", { class: "frame" }, canvas, mark), make("figcaption", {}, words)));
      canvas.addEventListener("pointermove", (event) => this.point(canvas, event));
      canvas.addEventListener("pointerdown", (event) => this.point(canvas, event));
      canvas.addEventListener("pointerleave", (event) => {
        if (event.pointerType !== "touch") this.read(null);
      });
      canvas.addEventListener("keydown", (event) => this.key(event));
    }
    this.slider = make("input", { type: "range", min: "0", max: "100", value: "85", class: "opacity" });
    this.slider.addEventListener("input", () => this.paintOverlay());
    this.readout = make("output", { class: "readout", "aria-live": "polite" });
    this.element.append(
      row,
      make(
        "div",
        { class: "legend-row" },
        make("div", { class: "legend reds", role: "img", "aria-label": "Colours from white, nothing, to dark red, much" }),
        make("div", { class: "ends", "aria-hidden": "true" }, make("span", {}, "0"), make("span", {}, "much")),
      ),
      make("label", { class: "slider" }, "Heatmap over picture ", this.slider),
      this.readout,
      make("p", { id: hint, class: "visually-hidden" }, TOUCHED ? "Touch a pixel to read its relevance." : "Move with the arrow keys to read the relevance of single pixels; with Shift by ten."),
    );
    this.read(null);
  }

  get overlay(): HTMLCanvasElement {
    return this.canvases[2]!;
  }

  show(seen: ImageData, heat: Heat, score: number, what: string, scale = heat.scale): void {
    this.heat = heat;
    this.seen = seen;
    this.score = score;
    this.scale = scale;
    const [input, heatmap, overlay] = this.canvases as [HTMLCanvasElement, HTMLCanvasElement, HTMLCanvasElement];
    input.width = seen.width;
    input.height = seen.height;
    context(input).putImageData(seen, 0, 0);
    paintHeat(heatmap, heat, scale);
    this.paintOverlay();
    input.setAttribute("aria-label", "The picture as the network saw it");
    heatmap.setAttribute("aria-label", `Heatmap for ${what}. ${where(heat)}`);
    overlay.setAttribute("aria-label", `Heatmap for ${what} over the picture in grey`);
    this.read(this.at);
  }

  private paintOverlay(): void {
    if (this.seen && this.heat) {
      paintOverlay(this.overlay, this.seen, this.heat, Number(this.slider.value) / 100, this.scale);
    }
  }

  private point(canvas: HTMLCanvasElement, event: PointerEvent): void {
    if (!this.heat) return;
    const box = canvas.getBoundingClientRect();
    const x = Math.floor(((event.clientX - box.left) / box.width) * this.heat.width);
    const y = Math.floor(((event.clientY - box.top) / box.height) * this.heat.height);
    this.read([x, y]);
  }

  private key(event: KeyboardEvent): void {
    const step = event.shiftKey ? 10 : 1;
    const moves: Record<string, [number, number]> = {
      ArrowLeft: [-step, 0],
      ArrowRight: [step, 0],
      ArrowUp: [0, -step],
      ArrowDown: [0, step],
    };
    const move = moves[event.key];
    if (!move || !this.heat) return;
    const [x, y] = this.at ?? [this.heat.width >> 1, this.heat.height >> 1];
    this.read([x + move[0], y + move[1]]);
    event.preventDefault();
  }

  private read(at: [number, number] | null): void {
    const heat = this.heat;
    if (!at || !heat) {
      this.at = null;
      this.readout.textContent = `${TOUCHED ? "Touch" : "Point at"} a pixel to read its relevance.`;
      for (const mark of this.marks) mark.hidden = true;
      return;
    }
    const x = Math.max(0, Math.min(heat.width - 1, at[0]));
    const y = Math.max(0, Math.min(heat.height - 1, at[1]));
    this.at = [x, y];
    const value = heat.values[y * heat.width + x]!;
    const share = this.score > 0 ? `, ${percent(value, this.score)} of the score` : "";
    this.readout.textContent = `Column ${x}, row ${y}: relevance ${shown(value)}${share}`;
    for (const mark of this.marks) {
      mark.hidden = false;
      mark.style.left = `${(100 * (x + 0.5)) / heat.width}%`;
      mark.style.top = `${(100 * (y + 0.5)) / heat.height}%`;
    }
  }
}
