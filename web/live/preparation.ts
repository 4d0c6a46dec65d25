// A photograph as the network takes it: what deeptaylor/models/networks/preprocessing.py does.

import { context } from "../src/colours";
import { make } from "../src/dom";
import { columnsFirst, resizeAxis, windows } from "./resize";

export interface Preparation {
  resize: [number, number]; // height and width of the whole photograph
  size: [number, number]; // of its middle, which the network sees
  channels: "RGB" | "BGR";
  levels: number[][]; // for each channel of the input, the values of the 256 levels of a pixel
}

export interface Prepared {
  seen: ImageData;
  x: Float32Array;
}

const STRIP = 256; // rows or columns that are read at once: some browsers have no canvas as large as a photograph

export function prepare(photo: ImageBitmap, preparation: Preparation): Prepared {
  const [height, width] = preparation.resize;
  if (columnsFirst([photo.height, photo.width], preparation.resize)) {
    const low = new Uint8Array(3 * height * photo.width);
    const reads = windows(photo.height, height);
    for (let left = 0; left < photo.width; left += STRIP) {
      const columns = Math.min(STRIP, photo.width - left);
      const strip = resizeAxis(read(photo, left, 0, columns, photo.height), photo.height, columns, reads, true);
      for (let row = 0; row < height; row += 1) {
        low.set(strip.subarray(3 * columns * row, 3 * columns * (row + 1)), 3 * (photo.width * row + left));
      }
    }
    return cut(resizeAxis(low, height, photo.width, windows(photo.width, width), false), preparation);
  }
  const narrow = new Uint8Array(3 * width * photo.height);
  const reads = windows(photo.width, width);
  for (let top = 0; top < photo.height; top += STRIP) {
    const rows = Math.min(STRIP, photo.height - top);
    narrow.set(resizeAxis(read(photo, 0, top, photo.width, rows), rows, photo.width, reads, false), 3 * width * top);
  }
  return cut(resizeAxis(narrow, photo.height, width, windows(photo.height, height), true), preparation);
}

// A part of a photograph, on white where it is transparent.
function read(photo: ImageBitmap, left: number, top: number, width: number, height: number): Uint8ClampedArray {
  const canvas = make("canvas");
  canvas.width = width;
  canvas.height = height;
  const drawn = context(canvas);
  drawn.fillStyle = "white";
  drawn.fillRect(0, 0, width, height);
  drawn.drawImage(photo, -left, -top);
  return drawn.getImageData(0, 0, width, height).data;
}

// The middle, with its channels in the network's order.
function cut(pixels: Uint8Array, { resize, size, channels, levels }: Preparation): Prepared {
  const [height, width] = size;
  const top = Math.floor((resize[0] - height) / 2);
  const left = Math.floor((resize[1] - width) / 2);
  const seen = new ImageData(width, height);
  const x = new Float32Array(3 * height * width);
  const order = channels === "BGR" ? [2, 1, 0] : [0, 1, 2];
  for (let row = 0; row < height; row += 1) {
    for (let column = 0; column < width; column += 1) {
      const from = 3 * ((row + top) * resize[1] + column + left);
      const to = row * width + column;
      seen.data.set([pixels[from]!, pixels[from + 1]!, pixels[from + 2]!, 255], 4 * to);
      order.forEach((channel, k) => (x[k * height * width + to] = levels[k]![pixels[from + channel]!]!));
    }
  }
  return { seen, x };
}
