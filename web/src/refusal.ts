// What cannot be answered; classes that the server offers in place of an unknown one become buttons.

import type { ClassChoice } from "./api";
import { make } from "./dom";

export function refusal(
  said: string,
  offered: readonly ClassChoice[],
  correct: (number: string) => void,
): { words: HTMLElement[]; buttons: HTMLElement[] } {
  return {
    words: [...said.split("\n"), ...(offered.length ? ["Did you mean:"] : [])].map((line) => make("p", {}, line)),
    buttons: offered.map(({ index, name }) => make("button", { type: "button", click: () => correct(String(index)) }, name)),
  };
}

export function words(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
