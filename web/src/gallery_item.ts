// One item of a run, large: its photograph and heatmap, and what the store has of it in sentences.

import { byId, make } from "./dom";
import { getItem, getPicture, itemPath } from "./gallery_api";
import { picture } from "./gallery_pictures";
import type { Taken } from "./photos";
import { words } from "./refusal";

const MOST = 2048; // pixels a side that the server sends
const SHRUNK = `The photograph of the run, with at most ${MOST} pixels on a side. If it was larger, numbers differ slightly.`;

export class ItemDialog {
  private readonly dialog = byId<HTMLDialogElement>("item-dialog");
  private readonly title = make("h2", { id: "item-title" });
  private readonly body = make("div", { class: "item-body" });
  private readonly problem = make("p", { class: "error", role: "alert", hidden: true });
  private readonly again = make("button", { type: "button", class: "main" }, "Explain it again");
  private readonly before = make("button", { type: "button" }, "Previous");
  private readonly after = make("button", { type: "button" }, "Next");
  private items: number[] = [];
  private place = 0;

  // `network`: the one that explains anew, in words; empty where none of the page explains photographs.
  constructor(private readonly network: string, private readonly anew: (taken: Taken) => void) {
    const close = make("button", { type: "button", click: () => this.dialog.close() }, "Close");
    this.before.addEventListener("click", () => this.go(-1));
    this.after.addEventListener("click", () => this.go(1));
    this.again.addEventListener("click", () => void this.explain());
    this.dialog.append(this.title, this.body, this.problem, make("div", { class: "buttons" }, this.again, this.before, this.after, close));
    this.dialog.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) this.go(step);
    });
  }

  // One of several, through which one can go.
  show(items: number[], item: number): void {
    this.items = items;
    this.place = items.indexOf(item);
    this.dialog.showModal();
    void this.fill();
  }

  private go(step: number): void {
    const next = this.place + step;
    if (next < 0 || next >= this.items.length) return;
    this.place = next;
    void this.fill();
  }

  private get number(): number {
    return this.items[this.place]!;
  }

  private async fill(): Promise<void> {
    const { number } = this;
    this.before.disabled = this.place === 0;
    this.after.disabled = this.place === this.items.length - 1;
    this.refuse("");
    try {
      const told = await getItem(number);
      if (number !== this.number) return;
      this.title.textContent = `${told.name} (item ${number})`;
      const figures = [
        ...(told.pictured ? [figure(itemPath(number, "seen"), "The photograph as the network saw it")] : []),
        ...(told.mapped ? [figure(itemPath(number, "heatmap"), told.pictured ? "Its heatmap over the photograph in grey" : "Its heatmap")] : []),
      ];
      this.again.hidden = !told.pictured || !this.network;
      const by = this.again.hidden ? [] : [make("p", { class: "soft" }, `“Explain it again” uses the network of the tab “Pictures”, ${this.network}.`)];
      this.body.replaceChildren(make("div", { class: "figures" }, ...figures), ...told.sentences.map((said) => make("p", { class: "says" }, said)), ...by);
    } catch (error) {
      this.refuse(words(error));
    }
  }

  private async explain(): Promise<void> {
    const { number } = this;
    try {
      const taken = await getPicture(itemPath(number, "photograph"));
      const name = this.title.textContent!.replace(/ \(item \d+\)$/, "");
      const { width, height } = await createImageBitmap(taken);
      this.dialog.close();
      this.anew({ picture: taken, file: name.slice(0, 200), note: Math.max(width, height) < MOST ? "The photograph of the run." : SHRUNK });
    } catch (error) {
      this.refuse(words(error));
    }
  }

  private refuse(said: string): void {
    this.problem.textContent = said;
    this.problem.hidden = !said;
  }
}

function figure(path: string, caption: string): HTMLElement {
  return make("figure", {}, picture(path, ""), make("figcaption", {}, caption));
}
