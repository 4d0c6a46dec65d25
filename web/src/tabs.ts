// Pictures, texts and a data set, one at a time: what the tabs show, and how they are moved through by keyboard.

import { byId } from "./dom";

export type Tab = "pictures" | "texts" | "gallery";

const TITLES: Record<Tab, string> = {
  pictures: "Which pixels decided the network’s answer?",
  texts: "Which words decided the network’s answer?",
  gallery: "Which pixels decided the answers for a data set?",
};
const STAGES: Record<Tab, string> = { pictures: "#stage", texts: "#text-stage", gallery: "#gallery-stage" };
const ALL: Tab[] = ["pictures", "texts", "gallery"];

export class Tabs {
  // `shown`: called whenever a tab comes up, also the first. That of a data set is there where a run is looked at.
  constructor(private readonly shown: (tab: Tab) => void, run: boolean) {
    byId("tab-gallery").hidden = !run;
    const tabs = ALL.filter((tab) => tab !== "gallery" || run);
    for (const tab of tabs) {
      const button = byId(`tab-${tab}`);
      button.addEventListener("click", () => this.show(tab));
      button.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1, Home: -tabs.indexOf(tab), End: tabs.length - 1 - tabs.indexOf(tab) }[event.key];
        if (step === undefined) return;
        event.preventDefault();
        const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length]!;
        this.show(next);
        byId(`tab-${next}`).focus();
      });
    }
  }

  show(chosen: Tab): void {
    for (const tab of ALL) {
      const button = byId(`tab-${tab}`);
      button.setAttribute("aria-selected", String(tab === chosen));
      button.tabIndex = tab === chosen ? 0 : -1;
      byId(tab).hidden = tab !== chosen;
    }
    byId("heading").textContent = TITLES[chosen];
    document.title = `${TITLES[chosen]} – deeptaylor`;
    document.querySelector<HTMLAnchorElement>(".skip")!.href = STAGES[chosen];
    this.shown(chosen);
  }
}
