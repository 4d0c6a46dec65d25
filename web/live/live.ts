// The page that explains photographs as files alone: network and explanation run in the browser, with onnxruntime-web.

import * as ort from "onnxruntime-web/wasm";
import { View } from "../digits/view";
import { robustScale } from "../src/colours";
import { byId, make, shown } from "../src/dom";
import { showGuesses } from "../src/guesses";
import { saving } from "../src/taking";
import { npy } from "./npy";
import { prepare, type Preparation, type Prepared } from "./preparation";

ort.env.wasm.wasmPaths = new URL("./", import.meta.url).href;
ort.env.wasm.numThreads = 1; // more would need headers that plain files do not have

interface Model extends Preparation {
  title: string;
  classes: string[];
  examples: { title: string; file: string }[];
}

interface Answer {
  target: number;
  score: number;
  heat: Float32Array;
  input: number;
  bias: number;
  dropped: number;
  returned: number;
  probabilities: Float64Array;
}

const TOP = 5;
const view = new View();
const status = byId("model-status");
let photo: { name: string; prepared: Prepared } | null = null;
let asked = 0;

async function load(): Promise<{ model: Model; session: ort.InferenceSession }> {
  const [found, network] = await Promise.all([get("model.json"), get("explainer.onnx")]);
  const model = (await found.json()) as Model;
  offer(model);
  return { model, session: await ort.InferenceSession.create(new Uint8Array(await network.arrayBuffer())) };
}

async function get(file: string): Promise<Response> {
  const answer = await fetch(file);
  if (!answer.ok) throw new Error(`the file ${file} is missing on the server (${answer.status})`);
  return answer;
}

// Photographs to begin with. What is shown is what is explained: nothing is fetched later.
function offer(model: Model): void {
  for (const { title, file } of model.examples) {
    const image = make("img", { src: file, alt: "" });
    const button = make("button", { type: "button", class: "sample" }, image, make("span", {}, title));
    button.addEventListener("click", () => void take(title, () => image.decode().then(() => decode(image))));
    byId("tiles").append(make("li", {}, button));
  }
}

function decode(image: Blob | HTMLImageElement): Promise<ImageBitmap> {
  return createImageBitmap(image, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
}

const loaded = load();

async function take(name: string, open: () => Promise<ImageBitmap>): Promise<void> {
  const mine = ++asked;
  say("");
  byId("busy").textContent = "Waiting for the network …";
  try {
    const { model } = await loaded;
    const bitmap = await open().catch(() => {
      throw new Error(`${name} is not a picture that this browser can read.`);
    });
    const prepared = prepare(bitmap, model);
    bitmap.close();
    if (mine !== asked) return;
    photo = { name, prepared };
    await explain(-1);
  } catch (error) {
    if (mine === asked) say(error instanceof Error ? error.message : String(error));
  }
}

// A class by its number; −1: the top class.
async function explain(target: number): Promise<void> {
  if (!photo) return;
  const mine = ++asked;
  const { name, prepared } = photo;
  byId("stage").setAttribute("aria-busy", "true");
  byId("busy").textContent = "Explaining …";
  await painted();
  try {
    const { model, session } = await loaded;
    const began = performance.now();
    const answer = await run(model, session, prepared.x, target);
    const seconds = (performance.now() - began) / 1000;
    if (mine === asked) show(model, name, prepared.seen, answer, seconds);
  } catch (error) {
    if (mine === asked) say(`The photograph could not be explained: ${error instanceof Error ? error.message : String(error)}`);
  } finally {
    if (mine === asked) byId("stage").removeAttribute("aria-busy");
  }
}

async function run(model: Model, session: ort.InferenceSession, x: Float32Array, target: number): Promise<Answer> {
  const found = await session.run({
    x: new ort.Tensor("float32", x, [1, 3, ...model.size]),
    target: new ort.Tensor("int64", BigInt64Array.of(BigInt(target)), [1]),
  });
  const numbers = (name: string): Float32Array => found[name]!.data as Float32Array;
  const [input, bias, dropped, returned] = numbers("ledger") as unknown as [number, number, number, number];
  const logits = numbers("logits");
  const top = logits.indexOf(Math.max(...logits));
  return {
    target: target < 0 ? top : target,
    score: numbers("score")[0]!,
    heat: numbers("heat"),
    input,
    bias,
    dropped,
    returned,
    probabilities: softmax(logits),
  };
}

function softmax(logits: Float32Array): Float64Array {
  const largest = Math.max(...logits);
  const sizes = Float64Array.from(logits, (logit) => Math.exp(logit - largest));
  const sum = sizes.reduce((total, size) => total + size, 0);
  return sizes.map((size) => size / sum);
}

function show(model: Model, file: string, seen: ImageData, answer: Answer, seconds: number): void {
  const { target, score, heat, probabilities } = answer;
  const name = model.classes[target]!;
  byId("welcome").hidden = true;
  byId("result").hidden = byId("question").hidden = false;
  byId("file-name").textContent = file;
  byId("title").textContent = `${name}, ${(100 * probabilities[target]!).toFixed(1)} %`;
  byId("busy").textContent = `Computed in this browser in ${seconds.toFixed(1)} s.`;
  byId("ledger").textContent = score > 0 ? account(answer) : "The score of this class is not positive, so there is nothing to explain.";
  const [height, width] = model.size;
  view.show(seen, { height, width, scale: robustScale(heat), values: heat }, Math.max(0, score), `“${name}”`);
  const saved = `${file.replace(/\.[^.]*$/, "") || "photograph"}_${name.replaceAll(" ", "_")}`;
  byId("take").replaceChildren(
    saving("Overlay (PNG)", `${saved}.png`, png, say),
    saving("Numbers (npy)", `${saved}.npy`, async () => npy(heat, model.size), say),
  );
  const best = Array.from(probabilities.keys()).sort((a, b) => probabilities[b]! - probabilities[a]!);
  showGuesses(
    byId("classes"),
    best.slice(0, TOP).map((k) => ({
      name: model.classes[k]!,
      probability: probabilities[k]!,
      pressed: k === target,
      choose: () => void explain(k),
    })),
  );
  byId("title").scrollIntoView({ block: "nearest" }); // on a phone it may be far above what was touched
}

// Where the score went, in a line.
function account({ score, input, bias, dropped, returned }: Answer): string {
  const back = returned > 0 ? ` (of which ${shown(returned)} was absorbed by biases and redistributed)` : "";
  return `Score ${shown(score)} = picture ${shown(input)}${back} + biases ${shown(bias)} + dropped ${shown(dropped)}.`;
}

// The overlay as it is shown.
function png(): Promise<Blob> {
  return new Promise((done, failed) =>
    view.overlay.toBlob((blob) => (blob ? done(blob) : failed(new Error("This browser could not write the picture."))), "image/png"),
  );
}

function say(words: string): void {
  byId("problem").textContent = words;
  byId("problem").hidden = !words;
  if (words) byId("busy").textContent = "";
}

// Once the browser has painted what was said: while the network runs, it paints nothing.
function painted(): Promise<void> {
  return new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
}

function wire(): void {
  const input = byId<HTMLInputElement>("file");
  const takeFile = (file: File | undefined): void => {
    if (file) void take(file.name, () => decode(file));
  };
  input.addEventListener("change", () => {
    takeFile(input.files?.[0]);
    input.value = "";
  });
  byId("pick").addEventListener("click", () => input.click());
  for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      document.body.classList.toggle("over", kind === "dragenter" || kind === "dragover");
    });
  }
  document.addEventListener("drop", (event) => takeFile(event.dataTransfer?.files[0]));
  document.addEventListener("paste", (event) => takeFile(event.clipboardData?.files[0]));
}

byId("view").append(view.element);
wire();
status.textContent = "Loading the network, about 25 MB …";
byId("model-progress").hidden = false;
loaded
  .then(({ model }) => (status.textContent = `${model.title} is ready.`))
  .catch((error: unknown) => {
    status.textContent = "";
    say(`The network could not be loaded: ${error instanceof Error ? error.message : String(error)}`);
  })
  .finally(() => (byId("model-progress").hidden = true));
