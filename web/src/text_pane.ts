// One explanation of a text as it is shown: words in red and blue, the account in sentences, the largest words.

import { colour, normalised, type Colour } from "./colours";
import { make, shown } from "./dom";
import { code, saving } from "./taking";
import { asPage, asPicture, type Answer, type Part, type Question, type Word } from "./text_api";

const DARK = matchMedia("(prefers-color-scheme: dark)");
const LARGEST = 8; // words that are listed
const DARKEST: Colour = [29, 29, 34]; // the page's own, where nothing is said for or against

export class TextPane {
  readonly element: HTMLElement;
  readonly details = make("div", { class: "details", hidden: true });
  answer: Answer | null = null;
  private readonly title = make("h2", { class: "title", tabindex: "-1" });
  private readonly made = make("p", { class: "made soft" });
  private readonly text = make("div", { class: "coloured", tabindex: "0", role: "region", "aria-label": "The text in colours" });
  private readonly scale = make("div", { class: "legend-row" });
  private readonly facts = make("div", { class: "facts" });
  private readonly account = make("div", { class: "account" });
  private readonly largest = make("div", { class: "largest" });
  private readonly problem = make("p", { class: "error", role: "alert", hidden: true });
  private readonly buttons = make("div", { class: "buttons" });
  private whole = true; // sub-words are summed to words

  constructor() {
    const choice = (label: string, whole: boolean): HTMLElement => {
      const input = make("input", { type: "radio", name: "pieces", value: label });
      input.checked = whole === this.whole;
      input.addEventListener("change", () => {
        this.whole = whole;
        this.paint();
      });
      return make("label", {}, input, make("span", {}, label));
    };
    const pieces = make("fieldset", { class: "switch" }, make("legend", { class: "visually-hidden" }, "Colour words or tokens"), choice("Words", true), choice("Tokens", false));
    this.element = make(
      "article",
      { class: "text-pane", "aria-label": "Explanation", hidden: true },
      this.title,
      this.made,
      this.text,
      make("div", { class: "under" }, this.scale, pieces, this.buttons),
      this.problem,
      this.facts,
      make("div", { class: "columns" }, this.account, this.largest),
    );
    DARK.addEventListener("change", () => this.paint());
  }

  clear(): void {
    this.answer = null;
    this.element.hidden = this.details.hidden = true;
  }

  show(answer: Answer, question: Question): void {
    this.answer = answer;
    this.element.hidden = this.details.hidden = this.problem.hidden = false;
    this.problem.hidden = true;
    this.title.textContent = answer.title;
    this.made.textContent = answer.made;
    this.facts.replaceChildren(
      ...answer.sentences.map((words) => make("p", { class: "says" }, words)),
      ...(answer.notes.length ? [make("ul", { class: "notes soft" }, ...answer.notes.map((note) => make("li", {}, note)))] : []),
    );
    this.account.replaceChildren(make("h3", {}, "Where the score went"), account(answer.parts));
    const refused = (words: string): void => {
      this.problem.textContent = words;
      this.problem.hidden = false;
    };
    this.buttons.replaceChildren(
      saving("Page (HTML)", "words.html", () => asPage(question), refused),
      saving("Picture (PNG)", "words.png", () => asPicture(question), refused),
    );
    this.details.replaceChildren(
      make(
        "section",
        { class: "taking" },
        make("h3", {}, "Save and reuse"),
        code("The account, token by token", answer.table),
        code("The same in Python", answer.snippet),
        code("The same on the command line", answer.command),
      ),
    );
    this.paint();
  }

  private paint(): void {
    if (!this.answer) return;
    const words = this.whole ? this.answer.words : this.answer.tokens;
    const most = Math.max(...words.map(({ value }) => Math.abs(value)));
    const scale = most || 1;
    this.text.replaceChildren();
    for (const word of words) {
      if (word.breaks) this.text.append(make("br"));
      this.text.append(coloured(word, scale), " ");
    }
    this.scale.replaceChildren(
      make("div", { class: "legend words", role: "img", "aria-label": "Colours from against to for" }),
      make("div", { class: "ends", "aria-hidden": "true" }, ...[`against −${shown(most)}`, "0", `for ${shown(most)}`].map((text) => make("span", {}, text))),
    );
    this.largest.replaceChildren(make("h3", {}, `Largest ${this.whole ? "words" : "tokens"}`), largest(words, most));
  }
}

function coloured(word: Word, scale: number): HTMLElement {
  const [background, ink] = colours(normalised(word.value, scale));
  const span = make("span", { class: word.special ? "word special" : "word", title: shown(word.value) }, word.text);
  span.style.background = background;
  span.style.color = ink;
  return span;
}

// In the dark, what counts nothing is as dark as the page, and what counts most is bright.
function colours(t: number): [string, string] {
  const full = colour(Math.sign(t) / 2);
  const rgb = DARK.matches ? (DARKEST.map((c, k) => c + Math.abs(t) * (full[k]! - c)) as Colour) : colour(t);
  return [`rgb(${rgb.map(Math.round).join(" ")})`, light(rgb) > 0.179 ? "#000" : "#fff"];
}

// How bright a colour is, 0 to 1, as the guidelines for contrast have it: black can be read above 0.179, white below.
function light(rgb: Colour): number {
  const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4)) as Colour;
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function bar(value: number, most: number): HTMLElement {
  const piece = make("span", { class: value < 0 ? "against" : "for" });
  piece.style.width = `${most > 0 ? (100 * Math.abs(value)) / most : 0}%`;
  return make("span", { class: "bar", "aria-hidden": "true" }, piece);
}

function signed(value: number): string {
  return shown(value).replace("-", "−");
}

function row(label: string, value: number, most: number, kind = "", of = "td"): HTMLElement {
  const head = of === "th" ? make("th", { scope: "row" }, label) : make("td", {}, label);
  return make("tr", kind ? { class: kind } : {}, head, make("td", { class: "bar-cell" }, bar(value, most)), make("td", { class: "number" }, signed(value)));
}

function account(parts: Part[]): HTMLElement {
  const most = Math.max(...parts.map(({ value }) => Math.abs(value)));
  const [score, ...rest] = parts;
  return make(
    "table",
    {},
    make("caption", { class: "visually-hidden" }, "The account of the score"),
    make("tbody", {}, ...rest.map(({ name, label, value }) => row(label, value, most, name, "th")), row(`= ${score!.label}`, score!.value, most, "score", "th")),
  );
}

function largest(words: Word[], most: number): HTMLElement {
  const own = words.filter(({ special, value }) => !special && value !== 0).sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  if (!own.length) return make("p", {}, "No word counts for or against it.");
  return make(
    "table",
    {},
    make("caption", { class: "visually-hidden" }, "The words that count most, by the size of their relevance"),
    make("thead", { class: "visually-hidden" }, make("tr", {}, ...["Word", "Size", "Relevance"].map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...own.slice(0, LARGEST).map(({ text, value }) => row(text, value, most, "", "th"))),
  );
}
