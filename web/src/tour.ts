// A tour in three steps on the first visit: where to begin, how to read the answer, what else to ask. It can be skipped.

import { byId, make } from "./dom";

const SEEN = "deeptaylor-tour"; // in the browser's storage, once the tour was shown
const STEPS: { title: string; text: string; place: string }[] = [
  {
    title: "Choose a photograph",
    text: "Pick, drop or paste a photograph, or take an example. The network names what it sees, and the page shows which pixels decided that.",
    place: "#photograph",
  },
  {
    title: "Read the answer",
    text: "Red pixels raise the score of the class. Point at the picture to read their values. Below it, the ledger shows where the whole score went.",
    place: "#stage",
  },
  {
    title: "Ask further",
    text: "Choose another class, another network or another method, or put two explanations side by side. “Check this map” hides parts of the picture and measures how the score changes.",
    place: ".controls",
  },
];

export function offerTour(): void {
  if (seen()) return;
  const dialog = byId<HTMLDialogElement>("tour");
  const title = make("h2", { id: "tour-title" });
  const text = make("p", {});
  const next = make("button", { type: "button", class: "main" });
  const skip = make("button", { type: "button" }, "Skip the tour");
  let step = 0;
  const mark = (place: string): void => {
    for (const marked of document.querySelectorAll(".toured")) marked.classList.remove("toured");
    if (place) document.querySelector(place)?.classList.add("toured");
  };
  const end = (): void => {
    mark("");
    dialog.close();
  };
  const show = (): void => {
    const { title: name, text: words, place } = STEPS[step]!;
    title.textContent = `${step + 1} of ${STEPS.length}: ${name}`;
    text.textContent = words;
    const last = step === STEPS.length - 1;
    next.textContent = last ? "Start" : "Next";
    skip.hidden = last;
    mark(place);
  };
  next.addEventListener("click", () => {
    step += 1;
    if (step < STEPS.length) show();
    else end();
  });
  skip.addEventListener("click", end);
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "Escape") end();
  });
  dialog.replaceChildren(title, text, make("div", { class: "buttons" }, next, skip));
  show();
  dialog.show();
}

// Whether the tour was shown before; where the browser stores nothing, it is not shown at all.
function seen(): boolean {
  try {
    const before = localStorage.getItem(SEEN) !== null;
    localStorage.setItem(SEEN, "shown");
    return before;
  } catch {
    return true;
  }
}
