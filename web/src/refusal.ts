// What cannot be answered, in words; names that the server offers in the place of an unknown one become buttons.

import { make } from "./dom";

export function refusal(said: string, correct: (number: string) => void): { words: HTMLElement[]; buttons: HTMLElement[] } {
  const [text, ...near] = said.split("\n");
  const words = [make("p", {}, text!)];
  const buttons = near.flatMap((line) => {
    const found = /^\s+(\d+)\s+(.*)$/.exec(line);
    if (!found) {
      words.push(make("p", {}, line));
      return [];
    }
    return [make("button", { type: "button", click: () => correct(found[1]!) }, found[2]!)];
  });
  return { words, buttons };
}

export function words(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
