// Pictures and texts, one at a time: what the tabs show, and how they are moved through by keyboard.

import { byId } from "./dom";

export type Tab = "pictures" | "texts";

const TITLES: Record<Tab, string> = {
  pictures: "Which pixels made the network say so?",
  texts: "Which words made the network say so?",
};
const STAGES: Record<Tab, string> = { pictures: "#stage", texts: "#text-stage" };
const TABS: Tab[] = ["pictures", "texts"];

export class Tabs {
  // `shown`: called whenever a tab comes up, also the first.
  constructor(private readonly shown: (tab: Tab) => void) {
    for (const tab of TABS) {
      const button = byId(`tab-${tab}`);
      button.addEventListener("click", () => this.show(tab));
      button.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1, Home: -TABS.indexOf(tab), End: TABS.length - 1 - TABS.indexOf(tab) }[event.key];
        if (step === undefined) return;
        event.preventDefault();
        const next = TABS[(TABS.indexOf(tab) + step + TABS.length) % TABS.length]!;
        this.show(next);
        byId(`tab-${next}`).focus();
      });
    }
  }

  show(chosen: Tab): void {
    for (const tab of TABS) {
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
