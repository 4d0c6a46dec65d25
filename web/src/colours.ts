// Relevance to colours, as deeptaylor/viz/heatmap.py does it: white is zero, red speaks for the decision, blue against it.

export interface Heat {
  height: number;
  width: number;
  scale: number; // the relevance that gets full colour
  values: Float32Array;
}

export type Colour = [number, number, number];

// The colours of maps from white to the strongest, from colors.css: deeptaylor/viz/colors.py defines them.
const RAMP: readonly Colour[] = getComputedStyle(document.documentElement)
  .getPropertyValue("--ramp")
  .split(",")
  .map((rgb) => rgb.trim().split(" ").map(Number) as Colour);

export function normalised(value: number, scale: number): number {
  return Math.max(-1, Math.min(1, value / scale));
}

export function colour(t: number): Colour {
  const size = Math.abs(t) * (RAMP.length - 1);
  const k = Math.min(Math.floor(size), RAMP.length - 2);
  const part = size - k;
  const below = RAMP[k]!;
  const above = RAMP[k + 1]!;
  const red = below.map((c, n) => c + part * (above[n]! - c)) as Colour;
  return t < 0 ? [red[2], red[1], red[0]] : red;
}

// The heat at a pixel of a picture that is larger: every place of a layer covers its part of the picture.
export function heatAt(heat: Heat, x: number, y: number, width: number, height: number): number {
  const column = Math.floor(((x + 0.5) * heat.width) / width);
  const row = Math.floor(((y + 0.5) * heat.height) / height);
  return heat.values[row * heat.width + column]!;
}

// Colours of −1 to 1 in small steps: thrice as fast as to compute them pixel by pixel.
const STEPS = 1024;
const TABLE = Float32Array.from({ length: 3 * (2 * STEPS + 1) }, (_, k) => colour(Math.floor(k / 3) / STEPS - 1)[k % 3]!);

export function paintHeat(canvas: HTMLCanvasElement, heat: Heat, scale = heat.scale): void {
  canvas.width = heat.width;
  canvas.height = heat.height;
  const image = new ImageData(heat.width, heat.height);
  const { data } = image;
  heat.values.forEach((value, k) => {
    const place = 3 * Math.round((normalised(value, scale) + 1) * STEPS);
    for (let c = 0; c < 3; c += 1) data[4 * k + c] = TABLE[place + c]!;
    data[4 * k + 3] = 255;
  });
  context(canvas).putImageData(image, 0, 0);
}

// Heat over its picture in pale grey: opaque where the heat is strong, only the picture where it is zero.
export function paintOverlay(
  canvas: HTMLCanvasElement,
  seen: ImageData,
  heat: Heat,
  opacity: number,
  scale = heat.scale,
): void {
  const { width, height } = seen;
  canvas.width = width;
  canvas.height = height;
  const image = new ImageData(width, height);
  const { data } = image;
  for (let k = 0; k < width * height; k += 1) {
    const value = heatAt(heat, k % width, Math.floor(k / width), width, height);
    const light = 299 * seen.data[4 * k]! + 587 * seen.data[4 * k + 1]! + 114 * seen.data[4 * k + 2]!;
    const grey = 255 - 0.6 * (255 - Math.round(light / 1000));
    const t = normalised(value, scale);
    const alpha = opacity * Math.sqrt(Math.abs(t));
    const place = 3 * Math.round((t + 1) * STEPS);
    for (let c = 0; c < 3; c += 1) data[4 * k + c] = (1 - alpha) * grey + alpha * TABLE[place + c]!;
    data[4 * k + 3] = 255;
  }
  context(canvas).putImageData(image, 0, 0);
}

export function context(canvas: HTMLCanvasElement): CanvasRenderingContext2D {
  const found = canvas.getContext("2d", { willReadFrequently: true });
  if (!found) throw new Error("this browser cannot draw");
  return found;
}

// The 99.5th percentile of |heat|, its maximum if that is zero, never zero: `robust_scale`.
export function robustScale(values: Float32Array): number {
  const sizes = Float32Array.from(values, Math.abs).sort();
  const place = 0.995 * (sizes.length - 1);
  const below = sizes[Math.floor(place)] ?? 0;
  const above = sizes[Math.ceil(place)] ?? 0;
  return below + (place - Math.floor(place)) * (above - below) || sizes[sizes.length - 1] || 1;
}

// In words, for those who do not see it: which of nine parts of the picture hold most.
export function where(heat: Heat): string {
  if (heat.height === 1) return "";
  const rows = ["top", "middle", "bottom"];
  const columns = ["left", "centre", "right"];
  const sums = new Array<number>(9).fill(0);
  let total = 0;
  heat.values.forEach((value, k) => {
    const row = Math.floor((3 * Math.floor(k / heat.width)) / heat.height);
    const column = Math.floor((3 * (k % heat.width)) / heat.width);
    sums[3 * row + column]! += Math.abs(value);
    total += Math.abs(value);
  });
  if (!(total > 0)) return "It is empty.";
  const best = sums.map((sum, k) => ({ sum, name: `${rows[Math.floor(k / 3)]!} ${columns[k % 3]!}` }));
  best.sort((a, b) => b.sum - a.sum);
  const words = best.slice(0, 3).map(({ sum, name }) => `${name} ${Math.round((100 * sum) / total)} %`);
  return `Most of it: ${words.join(", ")}.`;
}
