// Best guesses, by probability, to choose from.

import { make } from "./dom";

export interface Guessed {
  name: string;
  probability: number;
  pressed: boolean;
  choose: () => void;
}

// The buttons are made anew; the keyboard stays where it was.
export function showGuesses(list: HTMLElement, guesses: Guessed[]): void {
  const focused = [...list.querySelectorAll("button")].findIndex((button) => button === document.activeElement);
  list.replaceChildren(...guesses.map(guess));
  list.querySelectorAll("button")[focused]?.focus();
}

function guess({ name, probability, pressed, choose }: Guessed): HTMLElement {
  const meter = make("meter", { min: "0", max: "1", "aria-hidden": "true" });
  meter.value = probability;
  const button = make(
    "button",
    { type: "button", "aria-pressed": String(pressed), click: choose },
    make("span", {}, name),
    meter,
    make("span", { class: "number" }, `${(100 * probability).toFixed(1)} %`),
  );
  return make("li", {}, button);
}
