// Pillow 13's bilinear filter, number by number: antialiased, along one axis and then along the other, rounded to eight
// bits in between. A browser's own resizing differs from it, and then so does the map.

const BITS = 22; // of a weight behind the point
const HALF = 2 ** (BITS - 1);

export interface Window {
  first: number; // of the pixels that are read
  weights: Int32Array;
}

// What each of the new pixels reads of the old ones: a triangle as wide as a new pixel, or as an old one if that is wider.
export function windows(before: number, after: number): Window[] {
  const scale = before / after;
  const reach = Math.max(scale, 1);
  return Array.from({ length: after }, (_, k) => {
    const center = (k + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - reach + 0.5));
    const last = Math.min(before, Math.trunc(center + reach + 0.5));
    const sizes = Array.from({ length: last - first }, (_, n) => Math.max(0, 1 - Math.abs((n + first - center + 0.5) * (1 / reach))));
    const sum = sizes.reduce((total, size) => total + size, 0);
    return { first, weights: Int32Array.from(sizes, (size) => Math.trunc(0.5 + (size / sum) * 2 ** BITS)) };
  });
}

// Whether Pillow resizes columns before rows: the order decides how the numbers in between are rounded.
export function columnsFirst(before: [number, number], after: [number, number]): boolean {
  const [lost, lostAcross] = [before[0] - after[0], before[1] - after[1]];
  return lost > 0 && lost > 2 * lostAcross;
}

// Resize one axis of a picture with three channels, or with four of which the last one is left out.
export function resizeAxis(pixels: Uint8Array | Uint8ClampedArray, height: number, width: number, reads: Window[], columns: boolean): Uint8Array {
  const channels = pixels.length / (height * width);
  const [lines, line, step] = columns ? [width, channels, channels * width] : [height, channels * width, channels];
  const [lineOut, stepOut] = columns ? [3, 3 * width] : [3 * reads.length, 3];
  const out = new Uint8Array(3 * lines * reads.length);
  for (let l = 0; l < lines; l += 1) {
    reads.forEach(({ first, weights }, k) => {
      for (let c = 0; c < 3; c += 1) {
        let sum = HALF;
        let at = l * line + first * step + c;
        for (const weight of weights) {
          sum += pixels[at]! * weight;
          at += step;
        }
        out[l * lineOut + k * stepOut + c] = sum >> BITS;
      }
    });
  }
  return out;
}
