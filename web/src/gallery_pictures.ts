// Pictures of a run, fetched when they come into view.

import { make } from "./dom";
import { getPicture } from "./gallery_api";
import { words } from "./refusal";

const WAITING = new WeakMap<Element, () => void>();
const SEEN = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      SEEN.unobserve(target);
      WAITING.get(target)?.();
    }
  },
  { rootMargin: "200px" },
);

// An image that is empty until it is seen; where there is none, the words of the server take its place.
export function picture(path: string, alt: string): HTMLElement {
  const image = make("img", { alt });
  const place = make("span", { class: "picture" }, image);
  WAITING.set(place, () => void fill(place, image, path));
  SEEN.observe(place);
  return place;
}

// Of a file's path below its folder, the last part: there is little room in a grid.
export function lastName(name: string): string {
  return name.split("/").pop()!;
}

async function fill(place: HTMLElement, image: HTMLImageElement, path: string): Promise<void> {
  try {
    const address = URL.createObjectURL(await getPicture(path));
    image.addEventListener("load", () => {
      URL.revokeObjectURL(address);
      place.dataset["loaded"] = "yes";
    });
    image.src = address;
  } catch (error) {
    place.replaceChildren(make("span", { class: "soft" }, words(error)));
  }
}
