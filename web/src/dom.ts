// Elements by name and elements made; text is always set as text, never as HTML.

export function byId<T extends HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element has the id ${id}`);
  return found as T;
}

// Whether fingers do what a pointer does elsewhere; there need not be keys, either.
export const TOUCHED = matchMedia("(pointer: coarse)").matches;

type Attributes = Record<string, string | boolean | EventListener>;

export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (typeof value === "string") element.setAttribute(name, value);
    else if (value) element.setAttribute(name, "");
  }
  element.append(...children);
  return element;
}

// A number with digits enough to be told from none.
export function shown(value: number): string {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e-3 && size < 1e5 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
}

export function percent(part: number, whole: number): string {
  if (!(whole > 0)) return "–";
  const share = (100 * part) / whole;
  const size = Math.abs(share);
  if (size === 0) return "0 %";
  if (size < 0.001) return share > 0 ? "< 0.001 %" : "> −0.001 %";
  return `${Number(size > 99 ? share.toFixed(3) : share.toPrecision(3))} %`;
}

// Unique ids for labels.
let count = 0;
export function newId(stem: string): string {
  count += 1;
  return `${stem}-${count}`;
}
