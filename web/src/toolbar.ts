// How the pictures are shown: over the photograph or alone, how strongly, which map, and which layer.

import type { Layer } from "./api";
import { choice, chosen } from "./choice";
import { byId, make } from "./dom";
import { visible } from "./ledger";
import type { Showing } from "./pane";
import type { Look } from "./picture";

export class Toolbar {
  private readonly looks = choice("look", "Show", [
    ["overlay", "Over the photo"],
    ["map", "Map alone"],
    ["photograph", "Photo"],
  ]);
  private readonly maps = choice("map", "Map", [
    ["own", "Specific part"],
    ["difference", "Difference"],
  ]);
  private readonly slider = make("input", { type: "range", min: "0", max: "100", value: "85", class: "opacity" });
  private readonly layer = make("select", { id: "layer" });
  private readonly layerLabel = make("label", {}, "Where ", this.layer);

  constructor(repaint: () => void, look: (node: string) => void) {
    const strength = make("label", { class: "strength" }, "Strength ", this.slider);
    byId("toolbar").append(this.looks, strength, this.maps, this.layerLabel);
    this.slider.addEventListener("input", repaint);
    for (const set of [this.looks, this.maps]) set.addEventListener("change", repaint);
    this.layer.addEventListener("change", () => look(this.layer.value));
  }

  get showing(): Omit<Showing, "shared"> {
    return {
      look: chosen(this.looks) as Look,
      map: chosen(this.maps) as Showing["map"],
      opacity: Number(this.slider.value) / 100,
      node: this.layer.value,
    };
  }

  // The two maps of a class that is set apart, if it is.
  offerMaps(apart: boolean, first?: Showing["map"]): void {
    this.maps.hidden = !apart;
    if (first) this.maps.querySelector<HTMLInputElement>(`[value=${first}]`)!.checked = true;
  }

  offerLayers(layers: Layer[]): void {
    const before = this.layer.value;
    const below = visible(layers, false).slice(1);
    this.layer.replaceChildren(
      make("option", { value: "" }, "at the pixels"),
      ...below.map(({ node, module, op }) => make("option", { value: node }, `at ${module || node} (${op})`)),
    );
    this.layerLabel.hidden = !below.length;
    this.choose(layers.slice(1).some(({ node }) => node === before) ? before : "");
  }

  choose(node: string): void {
    // A step that only hands on is not on offer, but the ledger has it.
    if (![...this.layer.options].some(({ value }) => value === node)) this.layer.append(make("option", { value: node }, `at ${node}`));
    this.layer.value = node;
  }
}
