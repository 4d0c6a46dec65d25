// The tab of a data set: which items of a run are looked at, page by page, and what they have in common.

import { byId, make, shown } from "./dom";
import { getItems, itemPath, meanPath, type Counted, type Item, type Items, type Offer, type Which } from "./gallery_api";
import { ChannelView } from "./gallery_channels";
import { ClusterMap } from "./gallery_clusters";
import { ItemDialog } from "./gallery_item";
import { lastName, picture } from "./gallery_pictures";
import type { Taken } from "./photos";
import { words } from "./refusal";

const NARROW = matchMedia("(max-width: 60rem)");

export interface Network {
  name: string; // the one that the page begins with
  title: string; // empty where it does not explain photographs
}

export class GalleryPage {
  private readonly form = byId<HTMLFormElement>("filters");
  private readonly grid = byId("gallery-grid");
  private readonly clusters: ClusterMap;
  private readonly dialog: ItemDialog;
  private cluster = "";
  private page = 0;
  private asked = 0;

  constructor(offer: Offer, network: Network, anew: (taken: Taken) => void) {
    this.dialog = new ItemDialog(network.title, anew);
    this.clusters = new ClusterMap((cluster) => this.choose(cluster));
    new ChannelView(offer.layers, network.name, (items, item) => this.dialog.show(items, item));
    byId("run-title").textContent = offer.title;
    byId("run-about").textContent = offer.about;
    byId("run-note").textContent = offer.note;
    byId("gallery-colours").textContent = `${offer.pictured ? "Each heatmap lies over its photograph in grey" : "Heatmaps are shown alone, each"}, in a colour scale of its own: red speaks for the class that was explained, blue against it.`;
    byId<HTMLDetailsElement>("filter-details").open = !NARROW.matches;
    this.offer(offer);
    this.means(offer.explained);
    this.form.addEventListener("change", () => this.restart());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.restart();
    });
    this.form.addEventListener("reset", () => setTimeout(() => this.choose("")));
    byId("cluster-chosen").addEventListener("click", () => this.choose(""));
    byId("page-before").addEventListener("click", () => this.turn(-1));
    byId("page-after").addEventListener("click", () => this.turn(1));
    void this.show();
  }

  private offer(offer: Offer): void {
    const fill = (id: string, all: string, counted: Counted[]): void => {
      const options = counted.map(({ number, name, count }) => make("option", { value: String(number) }, `${name} (${count.toLocaleString("en")})`));
      byId<HTMLSelectElement>(id).replaceChildren(make("option", { value: "" }, all), ...options);
    };
    fill("filter-prediction", "Any", offer.answers);
    fill("filter-target", "Any", offer.explained);
    fill("filter-label", "Any", offer.labels);
    fill("filter-status", "Any", offer.statuses);
    byId("filter-target-field").hidden = JSON.stringify(offer.explained) === JSON.stringify(offer.answers); // as is usual
    byId("filter-label-field").hidden = byId("filter-right-field").hidden = !offer.labels.length;
    for (const [id, bound] of [["filter-low", offer.lowest], ["filter-high", offer.highest]] as const) {
      byId<HTMLInputElement>(id).placeholder = bound === null ? "" : shown(bound);
    }
  }

  // The mean heatmap of every class, and a way to its items.
  private means(classes: Counted[]): void {
    const entries = classes.map(({ number, name, count }) => {
      const button = make("button", { type: "button", class: "tile" }, picture(meanPath({ target: String(number) }), ""), make("span", {}, name), make("span", { class: "soft" }, `${count.toLocaleString("en")} items`));
      button.addEventListener("click", () => {
        this.form.reset();
        byId<HTMLSelectElement>(byId("filter-target-field").hidden ? "filter-prediction" : "filter-target").value = String(number);
        this.choose("");
      });
      return make("li", {}, button);
    });
    byId("class-means").replaceChildren(...entries);
  }

  private choose(cluster: string): void {
    this.cluster = cluster;
    byId("cluster-chosen").hidden = cluster === "";
    byId("cluster-chosen").textContent = `Leave cluster ${cluster}`;
    this.clusters.mark(cluster);
    this.restart();
  }

  private restart(): void {
    this.page = 0;
    void this.show();
  }

  private turn(step: number): void {
    this.page += step;
    void this.show().then(() => byId("gallery-items").scrollIntoView({ block: "start" }));
  }

  private get which(): Which {
    const given = [...new FormData(this.form)].map(([name, value]) => [name, String(value)]);
    return { ...(Object.fromEntries(given) as Which), cluster: this.cluster };
  }

  private async show(): Promise<void> {
    const asked = (this.asked += 1);
    const stage = byId("gallery-stage");
    stage.setAttribute("aria-busy", "true");
    try {
      const { which } = this;
      const found = await getItems({ ...which, page: String(this.page) });
      if (asked !== this.asked) return;
      this.refuse("");
      this.page = found.page;
      this.fill(found, which);
    } catch (error) {
      if (asked === this.asked) this.refuse(words(error));
    } finally {
      if (asked === this.asked) stage.removeAttribute("aria-busy");
    }
  }

  private fill(found: Items, which: Which): void {
    byId("gallery-sentence").textContent = `${this.cluster === "" ? "" : `Cluster ${this.cluster}: `}${found.sentence}`;
    byId("pager").hidden = found.pages < 2;
    byId<HTMLButtonElement>("page-before").disabled = found.page === 0;
    byId<HTMLButtonElement>("page-after").disabled = found.page === found.pages - 1;
    const mean = byId("gallery-mean");
    mean.hidden = !found.mean;
    mean.replaceChildren(...(found.mean ? [picture(meanPath(which), ""), make("figcaption", {}, found.mean)] : []));
    const numbers = found.items.map(({ index }) => index);
    this.grid.replaceChildren(...found.items.map((item) => this.tile(item, numbers)));
  }

  private tile(item: Item, numbers: number[]): HTMLElement {
    const wrong = item.wrong ? [make("span", { class: "wrong" }, "wrong")] : [];
    const button = make("button", { type: "button", class: "tile" }, picture(itemPath(item.index, "small"), ""), make("span", {}, item.said, ...wrong), make("span", { class: "soft" }, item.score === null ? "no score" : `score ${shown(item.score)}`), make("span", { class: "soft", title: item.name }, lastName(item.name)));
    button.addEventListener("click", () => this.dialog.show(numbers, item.index));
    return make("li", {}, button);
  }

  private refuse(said: string): void {
    const place = byId("gallery-refusal");
    place.hidden = !said;
    place.replaceChildren(...(said ? [make("p", {}, said)] : []));
  }
}
