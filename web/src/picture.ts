// One large picture: the map over the photograph, the map alone or the photograph; its relevances can be read off.

import { context, heatAt, paintHeat, paintOverlay, where, type Heat } from "./colours";
import { make, newId, percent, shown, TOUCHED } from "./dom";

export type Look = "overlay" | "map" | "photograph";

// What is painted: a map, and what its values are.
export interface Painted {
  heat: Heat;
  scale: number;
  alone?: number; // the scale of this map alone, where it is a part of one whose scale it has
  what: string; // in words, for those who do not see it
  unit: string; // what a value is called
  whole: number; // of which a value is a part; 0 where it is none
}

export class Picture {
  readonly canvas: HTMLCanvasElement;
  readonly element: HTMLElement;
  readonly readout = make("output", { class: "readout", "aria-live": "polite" });
  private readonly mark = make("span", { class: "mark", hidden: true, "aria-hidden": "true" });
  private seen: ImageData | null = null;
  private painted: Painted | null = null;
  private at: [number, number] | null = null;

  constructor() {
    const hint = newId("hint");
    this.canvas = make("canvas", { class: "shown", role: "img", tabindex: "0", "aria-describedby": hint });
    this.element = make(
      "div",
      { class: "picture" },
      make("div", { class: "frame" }, this.canvas, this.mark),
      make("p", { id: hint, class: "visually-hidden" }, TOUCHED ? "Touch the picture to read single pixels." : "Move with the arrow keys to read single pixels; with Shift by ten."),
    );
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "touch") this.read(null); // what was touched is read once the finger is gone
    });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.read(null);
  }

  // No map: the photograph alone.
  show(seen: ImageData, painted: Painted | null, look: Look, opacity: number): void {
    this.seen = seen;
    this.painted = painted;
    const strip = painted !== null && painted.heat.height === 1;
    this.canvas.classList.toggle("strip", strip);
    this.canvas.classList.toggle("crisp", look === "map");
    if (!painted || (look === "photograph" && !strip)) {
      this.canvas.width = seen.width;
      this.canvas.height = seen.height;
      context(this.canvas).putImageData(seen, 0, 0);
      this.canvas.setAttribute("aria-label", "The picture as the network saw it");
    } else if (look === "map" || strip) {
      paintHeat(this.canvas, painted.heat, painted.scale);
      this.canvas.setAttribute("aria-label", `Map: ${painted.what}. ${where(painted.heat)}`);
    } else {
      paintOverlay(this.canvas, seen, painted.heat, opacity, painted.scale);
      this.canvas.setAttribute("aria-label", `Map over the picture in grey: ${painted.what}. ${where(painted.heat)}`);
    }
    this.read(this.at);
  }

  // As it is shown, in a size that is worth keeping.
  png(): Promise<Blob> {
    const zoom = Math.max(1, Math.ceil(896 / this.canvas.width));
    const copy = make("canvas");
    copy.width = zoom * this.canvas.width;
    copy.height = zoom * this.canvas.height;
    context(copy).drawImage(this.canvas, 0, 0, copy.width, copy.height);
    return new Promise((done, failed) =>
      copy.toBlob((blob) => (blob ? done(blob) : failed(new Error("This browser could not write the picture."))), "image/png"),
    );
  }

  // Pixels of the picture, or places of the strip.
  private get size(): [number, number] {
    const heat = this.painted?.heat;
    if (heat?.height === 1) return [heat.width, 1];
    return [this.seen?.width ?? 1, this.seen?.height ?? 1];
  }

  private point(event: PointerEvent): void {
    const box = this.canvas.getBoundingClientRect();
    const [width, height] = this.size;
    this.read([
      Math.floor(((event.clientX - box.left) / box.width) * width),
      Math.floor(((event.clientY - box.top) / box.height) * height),
    ]);
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
    if (!move || !this.seen) return;
    const [width, height] = this.size;
    const [x, y] = this.at ?? [width >> 1, height >> 1];
    this.read([x + move[0], y + move[1]]);
    event.preventDefault();
  }

  private read(at: [number, number] | null): void {
    const painted = this.painted;
    if (!at || !painted) {
      this.at = null;
      this.mark.hidden = true;
      this.readout.textContent = painted ? `${TOUCHED ? "Touch" : "Point at"} the picture to read single values.` : "";
      return;
    }
    const [width, height] = this.size;
    const x = Math.max(0, Math.min(width - 1, at[0]));
    const y = Math.max(0, Math.min(height - 1, at[1]));
    this.at = [x, y];
    const value = heatAt(painted.heat, x, y, width, height);
    const share = painted.whole > 0 ? `, ${percent(value, painted.whole)} of the score` : "";
    this.readout.textContent = `Column ${x}, row ${y}: ${painted.unit} ${shown(value)}${share}`;
    this.mark.hidden = false;
    this.mark.style.left = `${(100 * (x + 0.5)) / width}%`;
    this.mark.style.top = `${(100 * (y + 0.5)) / height}%`;
  }
}
