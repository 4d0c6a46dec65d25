// One explanation as it is shown: its title and its numbers are those of the server's answer and of nothing else.

import * as api from "./api";
import { choice, chosen } from "./choice";
import { context, paintOverlay, robustScale, type Heat } from "./colours";
import { make, newId, percent, shown } from "./dom";
import { Ledger } from "./ledger";
import { OF_ANY_SCORE, made } from "./settings";
import { Picture, type Look, type Painted } from "./picture";
import { Taking } from "./taking";

// How the panes show what they have; both the same.
export interface Showing {
  look: Look;
  map: "own" | "difference";
  opacity: number;
  node: string; // the layer; empty: the pixels
  shared: number | null; // one colour scale for both, where that is wanted
}

const FAINT = 0.2; // of full colour, at most: hardly to be seen over a photograph
const UNITS: Record<string, string> = { sensitivity: "squared gradient", taylor: "relevance", "deep-taylor": "relevance" };

export class Pane {
  readonly element: HTMLElement;
  readonly details = make("div", { class: "details" });
  answer: api.Answer | null = null;
  layer: api.LayerAnswer | null = null;
  private seen: ImageData | null = null;
  private asked: { options: api.Options; picture: Blob } | null = null;
  private running: AbortController | null = null;
  private readonly picture = new Picture();
  private readonly title = make("h2", { class: "title", tabindex: "-1" });
  private readonly made = make("p", { class: "made soft" });
  private readonly busy = make("p", { class: "busy", role: "status" });
  private readonly legend = make("div", { class: "legend-row" });
  private readonly scale = make("p", { class: "scale soft" });
  private readonly scales = choice(newId("scale"), "Colour scale", [
    ["whole", "As in the whole map"],
    ["alone", "Its own"],
  ]);
  private showing: Showing | null = null;
  private readonly layerSays = make("p", { class: "says" });
  private readonly aboutPixels = [make("div", { class: "about" }), make("div", { class: "about" })] as const; // what is said of the pixels' map, above and below its colours
  private readonly channels = make("div", { class: "channels", hidden: true });
  private readonly ledger: Ledger;
  private readonly taking = new Taking(() => this.picture.png());

  constructor(
    label: string,
    private readonly networkTitle: (name: string) => string,
    pick: (node: string) => void,
  ) {
    this.ledger = new Ledger(pick);
    const [above, below] = this.aboutPixels;
    const facts = make("div", { class: "facts" }, above, this.layerSays, this.legend, this.scales, this.scale, this.picture.readout, below);
    this.element = make(
      "article",
      { class: "pane", "aria-label": label, hidden: true },
      this.title,
      this.made,
      make("div", { class: "body" }, this.picture.element, facts),
      this.channels,
      this.busy,
    );
    this.scales.classList.add("scales");
    this.scales.setAttribute("aria-describedby", (this.scale.id = newId("scale-says")));
    this.scales.addEventListener("change", () => {
      if (this.showing) this.repaint(this.showing);
    });
    this.details.append(this.ledger.element, this.taking.element);
    this.details.hidden = true;
  }

  clear(): void {
    this.running?.abort();
    this.answer = this.asked = this.layer = null;
    this.element.hidden = this.details.hidden = true;
    this.element.removeAttribute("aria-busy");
  }

  // True where there is a new answer, false where another question came before it; or the server's refusal.
  async ask(options: api.Options, picture: Blob): Promise<boolean> {
    this.running?.abort();
    const running = (this.running = new AbortController());
    const began = performance.now();
    const tick = (): void => {
      const seconds = Math.round((performance.now() - began) / 1000);
      this.busy.textContent = seconds < 2 ? "Explaining …" : `Explaining … ${seconds} s (new settings take some seconds the first time)`;
    };
    tick();
    this.element.hidden = false;
    this.element.setAttribute("aria-busy", "true");
    const clock = setInterval(tick, 1000);
    try {
      const answer = await api.explain(options, picture, running.signal);
      const seen = await decoded(answer.seen);
      if (running.signal.aborted) return false;
      this.answer = answer;
      this.seen = seen;
      this.asked = { options, picture };
      this.layer = null;
      this.fill(answer);
      return true;
    } catch (error) {
      if (running.signal.aborted) return false;
      throw error;
    } finally {
      clearInterval(clock);
      if (this.running === running) {
        this.element.removeAttribute("aria-busy");
        this.busy.textContent = "";
        this.element.hidden = !this.answer;
      }
    }
  }

  // The map of a layer, where this network has it and this method knows it.
  async look(node: string): Promise<void> {
    const { answer, asked } = this;
    this.layer = null;
    if (!answer || !asked || !node || !answer.layers.some((layer) => layer.node === node)) return;
    const layer = await api.explainLayer(node, asked.options, asked.picture);
    if (this.answer === answer) this.layer = layer;
  }

  repaint(showing: Showing): void {
    this.showing = showing;
    if (!this.answer || !this.seen) return;
    const painted = this.painted(showing);
    this.title.textContent = this.layer?.title ?? this.answer.title;
    this.picture.show(this.seen, painted, showing.look, showing.opacity);
    this.fillLegend(painted, showing);
    this.fillChannels(showing);
    this.ledger.choose(this.layer?.node ?? "");
    this.layerSays.textContent = this.layer?.sentence ?? "";
    this.aboutPixels.forEach((part) => (part.hidden = this.layer !== null));
  }

  // What is painted; nothing where there is no score to hand out.
  private painted(showing: Showing): Painted | null {
    const answer = this.answer!;
    const unit = UNITS[answer.method] ?? "relevance";
    const whole = answer.account?.score ?? 0;
    if (this.layer) {
      const { heat, node } = this.layer;
      return { heat, scale: heat.scale, what: `relevance at ${node}`, unit, whole };
    }
    if (answer.score <= 0 && !OF_ANY_SCORE.has(answer.method)) return null;
    if (answer.apart && showing.map === "difference") {
      const heat = answer.apart.difference;
      return this.scaled({ heat, scale: heat.scale, what: `${answer.title}, as a difference`, unit: "difference of relevances", whole });
    }
    const painted = { heat: answer.heat, scale: showing.shared ?? answer.heat.scale, what: answer.title, unit, whole };
    return answer.apart && showing.shared === null ? this.scaled(painted) : painted;
  }

  // A part of a class's map: in the colours of the whole of it, unless its own are chosen.
  private scaled(painted: Painted): Painted {
    const alone = robustScale(painted.heat.values);
    if (chosen(this.scales) === "whole") return { ...painted, alone };
    return { ...painted, alone, scale: alone, what: `${painted.what}, with its own colour scale` };
  }

  // --- what is said --------------------------------------------------------------------------------------------------

  private fill(answer: api.Answer): void {
    this.element.hidden = false;
    this.details.hidden = false;
    this.made.textContent = `${this.networkTitle(answer.model)}. ${made(answer.method, answer.bias)}`;
    const [above, below] = this.aboutPixels;
    above.replaceChildren();
    below.replaceChildren();
    if (answer.same) above.append(make("p", { class: "warning same" }, answer.same));
    if (answer.apart) {
      above.append(make("p", { class: "apart" }, make("strong", { class: "size" }, answer.apart.percent), ` ${answer.apart.sentence}`));
      if (answer.apart.nothing) above.append(make("p", { class: "nothing warning" }, answer.apart.nothing));
    }
    for (const words of answer.sentences) above.append(make("p", { class: "says" }, words));
    if (answer.warning) above.append(make("p", { class: "warning" }, answer.warning));
    if (answer.apart && answer.against === null) above.append(rivals(answer.apart));
    if (answer.reason) below.append(make("p", { class: "reason soft" }, answer.reason));
    if (answer.consistent) below.append(make("p", { class: "consistent" }, answer.consistent));
    if (answer.classes.length && (answer.score > 0 || OF_ANY_SCORE.has(answer.method))) below.append(this.believing());
    if (answer.notes.length) below.append(make("ul", { class: "notes soft" }, ...answer.notes.map((note) => make("li", {}, note))));
    this.ledger.show(answer.account, answer.layers);
    this.taking.show(answer, this.asked!.options, this.asked!.picture);
  }

  private believing(): HTMLElement {
    const said = make("p", { class: "believed", role: "status" });
    const button = make("button", { type: "button", class: "believe small" }, "Check this map: hide patches and watch the score");
    button.addEventListener("click", () => {
      const asked = this.asked!;
      button.disabled = true;
      said.textContent = "Hiding patches of the picture …";
      api
        .believed(asked.options, asked.picture)
        .then(({ area, sentence }) => {
          said.replaceChildren(make("strong", { class: "size" }, area.toFixed(2)), ` ${sentence}`);
          button.hidden = true;
        })
        .catch((error: unknown) => {
          said.textContent = error instanceof Error ? error.message : String(error);
          button.disabled = false;
        });
    });
    return make("div", {}, button, said);
  }

  private fillLegend(painted: Painted | null, showing: Showing): void {
    const answer = this.answer!;
    this.legend.hidden = this.scale.hidden = !painted || showing.look === "photograph";
    this.scales.hidden = this.legend.hidden || painted?.alone === undefined;
    if (!painted) return;
    const difference = !this.layer && answer.apart !== null && showing.map === "difference";
    const signed = difference || painted.heat.values.some((value) => value < 0);
    const left = difference ? (answer.against_name ? `“${answer.against_name}”` : "its rivals") : signed ? "against" : "0";
    const ends = [left, ...(signed ? ["0"] : []), difference ? `“${answer.target_name}”` : answer.method === "sensitivity" ? "strong" : signed ? "for" : "much"];
    this.legend.replaceChildren(
      make("div", { class: signed ? "legend" : "legend reds", role: "img", "aria-label": `Colours from ${ends[0]!} to ${ends.at(-1)!}` }),
      make("div", { class: "ends", "aria-hidden": "true" }, ...ends.map((words) => make("span", {}, words))),
    );
    const full = `Full colour from ${painted.unit} ${shown(painted.scale)} on${painted.whole > 0 ? ` (${percent(painted.scale, painted.whole)} of the score)` : ""}`;
    const shared = showing.shared !== null && !difference;
    this.scale.textContent = this.layer
      ? `${full}. The scale is this picture’s own.`
      : shared
        ? `${full}, the same in both pictures: equal colours are equal relevances.`
        : painted.alone !== undefined
          ? `${full}${compared(painted, painted.alone, `the whole map of “${answer.target_name}”`)}`
          : `${full}. The scale is this picture’s own.`;
  }

  private fillChannels(showing: Showing): void {
    const layer = this.layer;
    this.channels.hidden = !layer?.channels.length;
    if (!layer || this.channels.dataset["of"] === layer.node + this.answer!.title + String(showing.opacity)) return;
    this.channels.dataset["of"] = layer.node + this.answer!.title + String(showing.opacity);
    const whole = this.answer!.account?.score ?? 0;
    this.channels.replaceChildren(
      make("h3", {}, `The ${layer.channels.length} channels of this layer with the most relevance`),
      make("p", { class: "soft" }, "Each has its own colour scale; below it, its part of the score."),
      make(
        "ul",
        {},
        ...layer.channels.map(({ index, total, heat }) => {
          const canvas = make("canvas", { role: "img", "aria-label": `Channel ${index} over the picture in grey` });
          paintOverlay(canvas, this.seen!, heat, showing.opacity, (heat as Heat).scale);
          return make("li", {}, make("figure", {}, canvas, make("figcaption", {}, `channel ${index}: `, make("span", { class: "number" }, percent(total, whole)))));
        }),
      ),
    );
  }
}

// How the colours of a part of a map are to be read beside those of the whole.
function compared(painted: Painted, alone: number, whole: string): string {
  const times = painted.heat.scale / alone;
  if (painted.scale === painted.heat.scale) {
    const faint = `. It is barely visible at this scale: only one pixel in 200 has more than ${number(100 / times)} % of full colour.`;
    return `, as in ${whole}${1 / times < FAINT ? faint : "."}`;
  }
  return `, its own scale: colours are ${number(times)} times as strong as in ${whole}.`;
}

function number(value: number): string {
  return String(Number(value >= 100 ? value.toFixed(0) : value.toPrecision(2)));
}

function rivals(apart: api.Apart): HTMLElement {
  const rows = apart.rivals.map(({ name, weight }) => {
    const meter = make("meter", { min: "0", max: "1", "aria-hidden": "true" });
    meter.value = weight;
    return make("li", {}, make("span", {}, name), meter, make("span", { class: "number" }, percent(weight, 1)));
  });
  if (apart.more) rows.push(make("li", {}, `and ${apart.more} more`));
  return make("div", { class: "rivals" }, make("h3", {}, "Rivals and their weights"), make("ol", {}, ...rows));
}

async function decoded(png: string): Promise<ImageData> {
  const bitmap = await createImageBitmap(new Blob([api.bytes(png)], { type: "image/png" }));
  const canvas = make("canvas");
  canvas.width = bitmap.width;
  canvas.height = bitmap.height;
  context(canvas).drawImage(bitmap, 0, 0);
  return context(canvas).getImageData(0, 0, bitmap.width, bitmap.height);
}
