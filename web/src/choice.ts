// One of a few, side by side.

import { make } from "./dom";

export function choice(name: string, legend: string, every: [string, string][]): HTMLFieldSetElement {
  const labels = every.map(([value, words], k) => {
    const input = make("input", { type: "radio", name, value });
    input.checked = k === 0;
    return make("label", {}, input, make("span", {}, words));
  });
  return make("fieldset", { class: "switch" }, make("legend", { class: "visually-hidden" }, legend), ...labels);
}

export function chosen(set: HTMLFieldSetElement): string {
  return set.querySelector<HTMLInputElement>(":checked")!.value;
}
