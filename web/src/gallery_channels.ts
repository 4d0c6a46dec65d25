// A channel of a layer that the run watched, and the eight items in which it counted most.

import * as api from "./api";
import { byId, make, shown } from "./dom";
import { cropPath, getChannel, getChannels, getPicture, itemPath, type ChannelItem } from "./gallery_api";
import { lastName, picture } from "./gallery_pictures";
import { words } from "./refusal";

const CUT = "Above: the part of the photograph with most of the channel's relevance. Below: the part of the heatmap that passed through the channel.";

const NUMBER = "The number is the relevance that arrived at the channel.";

export class ChannelView {
  private readonly layer = byId<HTMLSelectElement>("channel-layer");
  private readonly channel = byId<HTMLSelectElement>("channel-number");
  private readonly status = byId("channel-status");
  private readonly place = byId("channel-items");
  private asked = 0;

  constructor(
    layers: string[],
    private readonly network: string,
    private readonly open: (items: number[], item: number) => void,
  ) {
    byId("channel-section").hidden = !layers.length;
    this.layer.replaceChildren(make("option", { value: "" }, "Choose a layer"), ...layers.map((name, k) => make("option", { value: String(k) }, name)));
    this.layer.addEventListener("change", () => void this.list());
    this.channel.addEventListener("change", () => void this.show());
  }

  private async list(): Promise<void> {
    this.place.hidden = true;
    byId("channel-field").hidden = this.layer.value === "";
    this.status.textContent = "";
    if (this.layer.value === "") return;
    try {
      const { channels, sentence } = await getChannels(Number(this.layer.value));
      this.status.textContent = sentence;
      this.channel.replaceChildren(...channels.map((c) => make("option", { value: String(c) }, `Channel ${c}`)));
      await this.show();
    } catch (error) {
      this.status.textContent = words(error);
    }
  }

  private async show(): Promise<void> {
    const asked = (this.asked += 1);
    const [layer, channel] = [Number(this.layer.value), Number(this.channel.value)];
    try {
      const { sentence, items } = await getChannel(layer, channel);
      if (asked !== this.asked) return;
      const how = make("p", { class: "soft", role: "status" });
      const list = make("ul", { class: "grid eight", "aria-label": "Items with the most relevance at the channel" });
      const fill = (path: (item: ChannelItem, place: number) => string): void =>
        list.replaceChildren(...items.map((item, place) => this.tile(items, item, path(item, place))));
      fill(({ index }) => itemPath(index, "small"));
      this.place.replaceChildren(make("h2", {}, sentence), how, list);
      this.place.hidden = false;
      this.place.scrollIntoView({ block: "start" });
      if (!items.length) return;
      how.textContent = "Computing the crops of this channel.";
      const refused = await this.cut(layer, channel);
      if (asked !== this.asked) return;
      how.textContent = `${refused ? `Whole photographs are shown with the heatmaps of the run. ${refused}` : CUT} ${NUMBER}`;
      if (!refused) fill((_, place) => cropPath(layer, channel, place));
    } catch (error) {
      this.status.textContent = words(error);
    }
  }

  // Once the network is loaded, the first piece is asked for: why there is none, or nothing.
  private async cut(layer: number, channel: number): Promise<string> {
    try {
      let model = await api.loadModel(this.network);
      while (model.state === "loading") {
        await new Promise((done) => setTimeout(done, 300));
        model = await api.getModel(this.network);
      }
      if (model.state !== "ready") return model.message;
      await getPicture(cropPath(layer, channel, 0));
      return "";
    } catch (error) {
      return words(error);
    }
  }

  private tile(items: ChannelItem[], item: ChannelItem, path: string): HTMLElement {
    const button = make("button", { type: "button", class: "tile" }, picture(path, ""), make("span", {}, item.said), make("span", { class: "soft" }, shown(item.value)), make("span", { class: "soft", title: item.name }, lastName(item.name)));
    button.addEventListener("click", () => this.open(items.map(({ index }) => index), item.index));
    return make("li", {}, button);
  }
}
