// Similar heatmaps: asked for once, and drawn by where they lie; a cluster is chosen by its button or its points.

import { byId, make } from "./dom";
import { beginClusters, getClusters, meanPath, type Cluster, type Clusters } from "./gallery_api";
import { picture } from "./gallery_pictures";
import { words } from "./refusal";

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 12; // of page.css: as many as there are clusters at most

export class ClusterMap {
  private readonly button = byId<HTMLButtonElement>("find-clusters");
  private readonly status = byId("clusters-status");
  private readonly progress = byId<HTMLProgressElement>("clusters-progress");
  private readonly place = byId("clusters");
  private readonly buttons: HTMLButtonElement[] = [];
  private svg: SVGElement | null = null;

  constructor(private readonly choose: (cluster: string) => void) {
    this.button.addEventListener("click", () => void this.find());
  }

  // Which one is looked at; empty: none.
  mark(chosen: string): void {
    for (const [number, button] of this.buttons.entries()) button.setAttribute("aria-pressed", String(String(number) === chosen));
    if (!this.svg) return;
    for (const point of this.svg.querySelectorAll("circle")) point.classList.toggle("pale", chosen !== "" && point.dataset["cluster"] !== chosen);
  }

  private async find(): Promise<void> {
    this.button.disabled = true;
    this.progress.hidden = false;
    try {
      let found = await beginClusters();
      while (found.state === "working") {
        this.status.textContent = `${found.message} ${Math.round(found.seconds)} s`;
        await new Promise((done) => setTimeout(done, 500));
        found = await getClusters();
      }
      if (found.state !== "ready") throw new Error(found.message);
      this.status.textContent = `${found.clusters.length} clusters were found in ${Math.max(1, Math.round(found.seconds))} s.`;
      this.button.hidden = true;
      this.draw(found);
    } catch (error) {
      this.status.textContent = words(error);
    } finally {
      this.button.disabled = false;
      this.progress.hidden = true;
    }
  }

  private draw(found: Clusters): void {
    this.svg = this.scatter(found);
    this.buttons.push(...found.clusters.map((cluster) => this.entry(cluster)));
    this.place.replaceChildren(
      make("h2", {}, "Similar heatmaps"),
      make(
        "div",
        { class: "cluster-columns" },
        make("div", {}, this.svg, make("p", { class: "soft" }, `Similar heatmaps lie close together. Every point is an item, and every colour a cluster. Similarity: 1 if all heatmaps of a cluster are the same. ${found.note}`)),
        make("ul", { class: "cluster-list", "aria-label": "Clusters" }, ...this.buttons.map((button) => make("li", {}, button))),
      ),
    );
    this.place.hidden = false;
    this.place.scrollIntoView({ block: "start" });
  }

  private scatter({ clusters, points }: Clusters): SVGElement {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "-2 -2 104 104");
    svg.setAttribute("role", "img");
    svg.setAttribute("class", "scatter");
    svg.setAttribute("aria-label", `${points.length} heatmaps in ${clusters.length} clusters, drawn so that similar heatmaps are close`);
    for (const [, cluster, x, y] of points) {
      const point = document.createElementNS(SVG, "circle");
      const at = { cx: String(100 * x), cy: String(100 - 100 * y), r: "1.1", class: `c${cluster % COLOURS}` };
      for (const [name, value] of Object.entries(at)) point.setAttribute(name, value);
      point.dataset["cluster"] = String(cluster);
      point.addEventListener("click", () => this.choose(String(cluster)));
      svg.append(point);
    }
    return svg;
  }

  private entry({ number, size, alike, sentence }: Cluster): HTMLButtonElement {
    const title = make("strong", {}, make("span", { class: `dot c${number % COLOURS}` }), `Cluster ${number}: ${size.toLocaleString("en")} items`);
    const about = make("span", { class: "soft" }, `${sentence} Similarity: ${alike.toFixed(2)}`);
    const button = make("button", { type: "button", "aria-pressed": "false" }, picture(meanPath({ cluster: String(number) }), ""), make("span", {}, title, about));
    button.addEventListener("click", () => this.choose(String(number)));
    return button;
  }
}
