// The digits page as files alone: the exported explainer runs in the browser, with onnxruntime-web.

import * as ort from "onnxruntime-web/wasm";
import { robustScale } from "../src/colours";
import { byId, percent, shown } from "../src/dom";
import { COLUMNS, Pad, ROWS, wireWriting } from "../src/pad";
import { View } from "./view";

ort.env.wasm.wasmPaths = new URL("./", import.meta.url).href;
ort.env.wasm.numThreads = 1; // more would need headers that plain files do not have

const BLACK = -0.5;
const WHITE = 1.5;
const sessions = new Map<string, Promise<ort.InferenceSession>>();
const select = byId<HTMLSelectElement>("model");
const status = byId("model-status");
const view = new View();
let asked = 0;

function session(name: string): Promise<ort.InferenceSession> {
  const known = sessions.get(name);
  if (known) return known;
  const made = ort.InferenceSession.create(`${name}.onnx`);
  sessions.set(name, made);
  made.catch(() => sessions.delete(name));
  return made;
}

async function load(): Promise<void> {
  const name = select.value;
  byId("model-progress").hidden = false;
  status.textContent = "Loading …";
  try {
    await session(name);
    if (select.value === name) status.textContent = "Ready.";
    explain();
  } catch (error) {
    status.textContent = "";
    say(`The network could not be loaded: ${error instanceof Error ? error.message : String(error)}`);
  } finally {
    if (select.value === name) byId("model-progress").hidden = true;
  }
}

function explain(): void {
  if (pad.empty) return;
  const mine = ++asked;
  const pixels = pad.pixels();
  run(select.value, pixels).then(
    ([score, relevance]) => {
      if (mine === asked) show(pixels, score, relevance);
    },
    (error: unknown) => say(error instanceof Error ? error.message : String(error)),
  );
}

async function run(name: string, pixels: Uint8Array): Promise<[number, Float32Array]> {
  const network = await session(name);
  const x = Float32Array.from(pixels, (p) => BLACK + (p / 255) * (WHITE - BLACK));
  const found = await network.run({ x: new ort.Tensor("float32", x, [1, 1, ROWS, COLUMNS]) });
  return [(found["score"]!.data as Float32Array)[0]!, found["relevance"]!.data as Float32Array];
}

function show(pixels: Uint8Array, score: number, relevance: Float32Array): void {
  const seen = new ImageData(COLUMNS, ROWS);
  pixels.forEach((p, k) => seen.data.set([p, p, p, 255], 4 * k));
  const held = relevance.reduce((sum, r) => sum + r, 0);
  byId("result").hidden = false;
  byId("little").hidden = !(score > 0 && held < score / 2);
  byId("little").textContent = `The input holds only ${percent(held, score)} of the score; the heatmap explains that part alone.`;
  byId("score").textContent =
    score > 0
      ? `The score is ${shown(score)}; the heatmap says which pixels hold it.`
      : `The score is ${shown(score)}: there is nothing to hand out.`;
  byId("sum").textContent = score > 0 ? `The pixels hold ${percent(held, score)} of it.` : "";
  view.show(seen, { height: ROWS, width: COLUMNS, scale: robustScale(relevance), values: relevance }, Math.max(0, score), "the network’s answer");
}

function say(words: string): void {
  byId("problem").textContent = words;
  byId("problem").hidden = !words;
}

byId("view").append(view.element);
const pad = new Pad(explain);
wireWriting(pad, () => {
  asked += 1;
  byId("result").hidden = true;
});
select.addEventListener("change", () => void load());
void load();
