// The server's side of this is src/deeptaylor/app/server/schema.py and models.py.

import type { Heat } from "./colours";
import type { Offer as GalleryOffer } from "./gallery_api";
import type { Offer } from "./text_api";

export interface Model {
  name: string;
  title: string;
  about: string;
  kind: "photograph" | "digits";
  state: "waiting" | "loading" | "ready" | "failed";
  message: string;
  seconds: number;
}

export interface Sample {
  name: string;
  title: string;
  credit: string;
}

export interface Models {
  models: Model[];
  chosen: string;
  rules: string[];
  limits: { bytes: number; pixels: number; network: number };
  samples: Sample[];
  text: Offer | null;
  gallery: GalleryOffer | null;
}

export interface Layer {
  node: string;
  module: string;
  op: string;
  rule: string;
  arrived: number;
  onward: number;
  bias: number;
  dropped: number;
}

export interface Account {
  score: number;
  input: number;
  shared: number;
  bias: number;
  dropped: number;
  returned: number;
}

export interface Found {
  index: number;
  name: string;
  probability: number;
}

export interface Apart {
  size: number;
  percent: string;
  sentence: string;
  nothing: string;
  difference: Heat;
  rivals: { index: number; name: string; weight: number }[];
  more: number;
}

export interface Answer {
  model: string;
  method: string;
  reason: string;
  bias: string | null;
  target: number | null;
  target_name: string;
  against: number | null;
  against_name: string;
  question: "evidence" | "apart";
  classes: Found[];
  score: number;
  title: string;
  sentences: string[];
  same: string;
  warning: string;
  consistent: string;
  account: Account | null;
  check: string;
  notes: string[];
  seen: string;
  heat: Heat;
  apart: Apart | null;
  layers: Layer[];
  plan: string;
  snippet: string;
  command: string;
}

export interface LayerAnswer {
  node: string;
  shape: number[];
  total: number;
  title: string;
  sentence: string;
  heat: Heat;
  channels: { index: number; total: number; heat: Heat }[];
}

export interface Believed {
  area: number;
  sentence: string;
}

export interface Swap {
  target: number;
  against: number;
}

// What goes into the address with a picture; empty values are left out.
export type Options = Record<string, string>;

// A class that is offered in place of an unknown one.
export interface ClassChoice {
  index: number;
  name: string;
}

export class ServerError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly swap: Swap | null = null,
    readonly classes: readonly ClassChoice[] = [],
  ) {
    super(message);
  }

  // Whether the picture is to blame, and not what was asked about it.
  get ofPicture(): boolean {
    return this.status === 413 || this.status === 415;
  }
}

const KEY = "deeptaylor-token";

// The token comes in the part of the address that a browser never sends, and is taken out of sight.
export function takeToken(): void {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, "", location.pathname);
  }
}

const AGAIN = 20; // how often a request is made again when the server is busy

export async function send(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = { "X-Deeptaylor-Token": sessionStorage.getItem(KEY) ?? "" };
  for (let attempt = 1; ; attempt += 1) {
    let response: Response;
    try {
      response = await fetch(path, { ...init, headers });
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") throw error;
      throw new ServerError(0, "The server does not answer. Is the command still running?");
    }
    if (response.ok) return response;
    if (response.status === 429 && attempt < AGAIN) {
      await new Promise((done) => setTimeout(done, 500 + 500 * Math.random()));
      continue;
    }
    let said: { error: string; swap?: Swap | null; classes?: ClassChoice[] | null } = { error: `The server answered with status ${response.status}.` };
    try {
      said = (await response.json()) as typeof said;
    } catch {
      // No words came with it.
    }
    throw new ServerError(response.status, said.error, said.swap ?? null, said.classes ?? []);
  }
}

export async function json<T>(response: Promise<Response>): Promise<T> {
  return (await (await response).json()) as T;
}

export const getModels = (): Promise<Models> => json(send("/api/models"));
export const getModel = (name: string): Promise<Model> => json(send(`/api/models/${encodeURIComponent(name)}`));
export const loadModel = (name: string): Promise<Model> =>
  json(send(`/api/models/${encodeURIComponent(name)}/load`, { method: "POST" }));
export const prepareModel = (name: string): Promise<Model> =>
  json(send(`/api/models/${encodeURIComponent(name)}/prepare`, { method: "POST" }));
export const getClasses = (name: string): Promise<string[]> =>
  json(send(`/api/models/${encodeURIComponent(name)}/classes`));

export const getSample = async (name: string): Promise<Blob> =>
  (await send(`/api/samples/${encodeURIComponent(name)}`)).blob();
export const dropNetwork = (said: Options, file: Blob): Promise<Model> =>
  json(send(`/api/networks?${new URLSearchParams(said).toString()}`, { method: "POST", body: file }));

function ask(path: string, options: Options, picture: Blob, signal?: AbortSignal): Promise<Response> {
  const query = new URLSearchParams(Object.entries(options).filter(([, value]) => value !== ""));
  return send(`${path}?${query.toString()}`, { method: "POST", body: picture, signal: signal ?? null });
}

export async function explain(options: Options, picture: Blob, signal: AbortSignal): Promise<Answer> {
  const answer = await json<Answer>(ask("/api/explain", options, picture, signal));
  const apart = answer.apart && { ...answer.apart, difference: decoded(answer.apart.difference) };
  return { ...answer, heat: decoded(answer.heat), apart };
}

export async function explainLayer(node: string, options: Options, picture: Blob): Promise<LayerAnswer> {
  const answer = await json<LayerAnswer>(ask(`/api/layers/${encodeURIComponent(node)}`, options, picture));
  const channels = answer.channels.map((channel) => ({ ...channel, heat: decoded(channel.heat) }));
  return { ...answer, heat: decoded(answer.heat), channels };
}

export const believed = (options: Options, picture: Blob): Promise<Believed> =>
  json(ask("/api/believed", options, picture));
export const heatmapPng = async (options: Options, picture: Blob): Promise<Blob> =>
  (await ask("/api/heatmap.png", options, picture)).blob();
export const arrays = async (options: Options, picture: Blob): Promise<Blob> =>
  (await ask("/api/explanation.npz", options, picture)).blob();

export function bytes(base64: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
}

function decoded(heat: Heat): Heat {
  return { ...heat, values: new Float32Array(bytes(heat.values as unknown as string).buffer) };
}
