// Two digits drawn by pointer, by keyboard, or written from strokes: 28 × 56 pixels, white ink on black.

import { context } from "./colours";
import { byId, make } from "./dom";

export const ROWS = 28;
export const COLUMNS = 56;
const ZOOM = 10;
const PEN = 2.4; // pixels, about as thick as the digits the networks learned from

type Point = [number, number];
type Half = number | null | "kept"; // a digit, nothing, or what is there

// Each digit in a square of 28, as handwriting: strokes of points.
const STROKES: Point[][][] = [
  [[[14, 5], [10, 7], [8, 12], [8, 17], [10, 21], [14, 23], [18, 21], [20, 17], [20, 12], [18, 7], [14, 5]]],
  [[[15, 5], [14, 14], [13, 23]]],
  [[[8, 9], [11, 6], [15, 5], [18, 7], [19, 11], [16, 15], [11, 20], [8, 23], [14, 22], [21, 23]]],
  [[[8, 6], [14, 5], [18, 7], [18, 11], [13, 13], [18, 15], [20, 18], [18, 22], [13, 23], [8, 22]]],
  [[[9, 5], [8, 14], [19, 14]], [[18, 5], [18, 14], [17, 23]]],
  [[[19, 5], [10, 6], [9, 13], [15, 12], [19, 16], [18, 21], [13, 23], [8, 21]]],
  [[[17, 5], [11, 10], [9, 16], [10, 21], [14, 23], [18, 21], [18, 17], [14, 15], [10, 18]]],
  [[[8, 6], [20, 6], [16, 13], [13, 23]]],
  [[[14, 13], [10, 10], [11, 6], [15, 5], [18, 7], [17, 11], [14, 13], [10, 17], [10, 21], [14, 23], [18, 21], [18, 17], [14, 13]]],
  [[[18, 9], [14, 5], [10, 8], [11, 12], [15, 13], [18, 9], [17, 16], [15, 23]]],
];

export class Pad {
  private readonly canvas = byId<HTMLCanvasElement>("pad");
  private readonly cursor = byId("pad-cursor");
  private readonly said = byId("pad-said");
  private readonly ink = document.createElement("canvas");
  private last: Point | null = null;
  private pen: Point = [14, 14];
  private down = false;
  empty = true;
  byHand: () => void = () => {}; // called when the pen is put down

  // `changed` is called when a stroke ends.
  constructor(private readonly changed: () => void) {
    this.ink.width = this.canvas.width = COLUMNS * ZOOM;
    this.ink.height = this.canvas.height = ROWS * ZOOM;
    this.clear();
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this.last = this.place(event);
      this.stroke([this.last, this.last]);
      this.byHand();
      event.preventDefault();
      this.canvas.focus();
      this.showCursor(false);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.last) return;
      const next = this.place(event);
      this.stroke([this.last, next]);
      this.last = next;
    });
    const end = (): void => {
      if (this.last) this.changed();
      this.last = null;
    };
    this.canvas.addEventListener("pointerup", end);
    this.canvas.addEventListener("pointercancel", end);
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("focus", () => this.showCursor(this.canvas.matches(":focus-visible")));
    this.canvas.addEventListener("blur", () => this.showCursor(false));
  }

  clear(): void {
    this.wipe(0, COLUMNS);
    this.empty = true;
    this.show();
  }

  write(left: Half, right: Half): void {
    if (left !== "kept" && right !== "kept") this.empty = true;
    [left, right].forEach((digit, half) => {
      if (digit === "kept") return;
      this.wipe((half * COLUMNS) / 2, COLUMNS / 2);
      for (const points of digit === null ? [] : STROKES[digit]!) {
        this.stroke(points.map(([x, y]) => [x + (half * COLUMNS) / 2, y]));
      }
    });
    this.show();
    this.changed();
  }

  private wipe(from: number, columns: number): void {
    const paper = context(this.ink);
    paper.fillStyle = "black";
    paper.fillRect(from * ZOOM, 0, columns * ZOOM, this.ink.height);
  }

  // One byte a pixel: the mean of the ink in each square.
  pixels(): Uint8Array {
    const { data } = context(this.ink).getImageData(0, 0, this.ink.width, this.ink.height);
    const mean = new Uint8Array(ROWS * COLUMNS);
    for (let row = 0; row < ROWS; row += 1) {
      for (let column = 0; column < COLUMNS; column += 1) {
        let sum = 0;
        for (let y = 0; y < ZOOM; y += 1) {
          const start = ((row * ZOOM + y) * COLUMNS + column) * ZOOM * 4;
          for (let x = 0; x < ZOOM; x += 1) sum += data[start + 4 * x]!;
        }
        mean[row * COLUMNS + column] = Math.round(sum / ZOOM ** 2);
      }
    }
    return mean;
  }

  // A grey picture, in the plainest format there is.
  picture(): Blob {
    return new Blob([`P5\n${COLUMNS} ${ROWS}\n255\n`, this.pixels() as Uint8Array<ArrayBuffer>], { type: "image/x-portable-graymap" });
  }

  private place(event: PointerEvent): Point {
    const box = this.canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * COLUMNS, ((event.clientY - box.top) / box.height) * ROWS];
  }

  private stroke(points: Point[]): void {
    const pen = context(this.ink);
    pen.strokeStyle = "white";
    pen.lineWidth = PEN * ZOOM;
    pen.lineCap = pen.lineJoin = "round";
    pen.beginPath();
    // Through the midpoints, so that corners are round.
    points.forEach(([x, y], k) => {
      const [u, v] = points[k + 1] ?? [x, y];
      if (k === 0) pen.moveTo(x * ZOOM, y * ZOOM);
      pen.quadraticCurveTo(x * ZOOM, y * ZOOM, ((x + u) / 2) * ZOOM, ((y + v) / 2) * ZOOM);
    });
    pen.stroke();
    this.empty = false;
    this.show();
  }

  private show(): void {
    const paper = context(this.canvas);
    paper.drawImage(this.ink, 0, 0);
    paper.strokeStyle = "#666";
    paper.setLineDash([6, 6]);
    paper.beginPath();
    paper.moveTo(this.canvas.width / 2, 0);
    paper.lineTo(this.canvas.width / 2, this.canvas.height);
    paper.stroke();
  }

  private key(event: KeyboardEvent): void {
    const step = event.shiftKey ? 4 : 1;
    const moves: Record<string, Point> = {
      ArrowLeft: [-step, 0],
      ArrowRight: [step, 0],
      ArrowUp: [0, -step],
      ArrowDown: [0, step],
    };
    const move = moves[event.key];
    if (move) {
      const from = this.pen;
      this.pen = [clip(from[0] + move[0], COLUMNS - 1), clip(from[1] + move[1], ROWS - 1)];
      if (this.down) this.stroke([from, this.pen]);
    } else if (event.key === " ") {
      this.down = !this.down;
      if (this.down) {
        this.stroke([this.pen, this.pen]);
        this.byHand();
      } else {
        this.changed();
      }
    } else {
      return;
    }
    event.preventDefault();
    this.showCursor(true);
    const half = this.pen[0] < 28 ? "left" : "right";
    this.said.textContent = `Pen ${this.down ? "down" : "up"}, ${half} half, column ${this.pen[0]}, row ${this.pen[1]}`;
  }

  private showCursor(visible: boolean): void {
    this.cursor.hidden = !visible;
    this.cursor.classList.toggle("down", this.down);
    this.cursor.style.left = `${(100 * this.pen[0]) / COLUMNS}%`;
    this.cursor.style.top = `${(100 * this.pen[1]) / ROWS}%`;
  }
}

function clip(value: number, most: number): number {
  return Math.max(0, Math.min(most, value));
}

const BY_HAND = "by hand"; // shown where the pad holds a drawing, and not to be chosen

// The two choices of digits, and the buttons that write them and clear the pad.
export function wireWriting(pad: Pad, cleared: () => void): void {
  const choices = ["write-left", "write-right"].map((id, half) => {
    const select = byId<HTMLSelectElement>(id);
    select.append(make("option", { value: BY_HAND, hidden: true, disabled: true }, "by hand"));
    select.append(make("option", { value: "" }, "nothing"));
    for (let digit = 0; digit < 10; digit += 1) select.append(make("option", { value: String(digit) }, String(digit)));
    select.value = half ? "8" : "3";
    return select;
  });
  // What was chosen last comes back where nothing is drawn by hand any more.
  let last = choices.map((select) => select.value);
  const restore = (): void => choices.forEach((select, half) => select.value === BY_HAND && (select.value = last[half]!));
  pad.byHand = () => {
    last = choices.map((select, half) => (select.value === BY_HAND ? last[half]! : select.value));
    for (const select of choices) select.value = BY_HAND;
  };
  byId("write").addEventListener("click", () => {
    if (choices.every((select) => select.value === BY_HAND)) restore();
    const [left, right] = choices.map(({ value }): Half => (value === BY_HAND ? "kept" : value === "" ? null : Number(value)));
    pad.write(left!, right!);
  });
  byId("clear").addEventListener("click", () => {
    restore();
    pad.clear();
    cleared();
  });
}
