// The server's side of this is src/deeptaylor/app/server/schema.py.

import { json, send } from "./api";

export interface Choice {
  name: string;
  title: string;
  about: string;
}

export interface Offer {
  title: string;
  kind: "classifier" | "language model" | "encoder–decoder" | "embedding";
  about: string;
  classes: string[];
  methods: Choice[];
  references: Choice[];
  characters: number;
  examples: string[][];
}

export interface Question {
  text: string;
  other?: string;
  target?: string;
  continuation?: string;
  token?: number | null;
  against?: string;
  method?: string;
  reference?: string;
}

export interface Word {
  text: string;
  value: number;
  special: boolean;
  breaks: boolean;
}

export interface Part {
  name: string;
  label: string;
  value: number;
}

export interface Answer {
  title: string;
  made: string;
  method: string;
  asked: string;
  score: number;
  sentences: string[];
  parts: Part[];
  tokens: Word[];
  words: Word[];
  guesses: { index: number; name: string; probability: number }[];
  chosen: number | null;
  notes: string[];
  table: string;
  snippet: string;
  command: string;
}

function ask(path: string, question: Question, signal?: AbortSignal): Promise<Response> {
  return send(path, { method: "POST", body: JSON.stringify(question), signal: signal ?? null });
}

export const explain = (question: Question, signal: AbortSignal): Promise<Answer> => json(ask("/api/text", question, signal));
export const asPage = async (question: Question): Promise<Blob> => (await ask("/api/text/words.html", question)).blob();
export const asPicture = async (question: Question): Promise<Blob> => (await ask("/api/text/words.png", question)).blob();
