// The tab for texts: a text and a question on the left, its words in colours on the right.

import { ServerError } from "./api";
import { byId, make } from "./dom";
import { showGuesses } from "./guesses";
import { refusal, words } from "./refusal";
import { explain, type Answer, type Offer, type Question } from "./text_api";
import { TextPane } from "./text_pane";

const NARROW = matchMedia("(max-width: 60rem)");
const WORDS: Record<Offer["kind"], { text: string; guesses: string; wanted: string; hint: string }> = {
  classifier: { text: "Text", guesses: "Classes with the highest probability:", wanted: "or another", hint: "" },
  "language model": {
    text: "Prompt",
    guesses: "Most likely next tokens:",
    wanted: "or another continuation",
    hint: "Begin with a space where a new word follows: most tokenizers have other tokens for “ Paris” than for “Paris”.",
  },
  "encoder–decoder": { text: "What the encoder reads", guesses: "Most likely first tokens:", wanted: "or another output", hint: "" },
  embedding: { text: "Two texts", guesses: "", wanted: "", hint: "" },
};

export class TextPage {
  private running: AbortController | null = null;
  private asked: Question | null = null; // the question that the answer belongs to
  private last: "target" | "against" = "target"; // what was typed last
  private token: number | null = null; // chosen among the likeliest
  private readonly pane = new TextPane();
  private readonly text = byId<HTMLTextAreaElement>("text");
  private readonly other = byId<HTMLTextAreaElement>("other-text");
  private readonly wanted = byId<HTMLInputElement>("text-wanted");
  private readonly against = byId<HTMLInputElement>("text-against");
  private readonly method = byId<HTMLSelectElement>("text-method");
  private readonly reference = byId<HTMLSelectElement>("text-reference");

  constructor(private readonly offer: Offer) {
    byId("text-panes").append(this.pane.element);
    byId("text-details").append(this.pane.details);
    this.fill();
    byId("text-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.another();
    });
    for (const field of [this.text, this.other]) {
      field.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
        event.preventDefault();
        this.another();
      });
    }
    byId("text-ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.token = null;
      this.last = this.against.value && this.known(this.wanted.value) ? "against" : "target";
      void this.explain();
    });
    byId("text-settings").addEventListener("submit", (event) => event.preventDefault());
    byId("text-settings").addEventListener("change", () => {
      this.adapt();
      if (this.asked) void this.explain();
    });
  }

  private fill(): void {
    const { title, kind, about, classes, methods, references, examples } = this.offer;
    const said = WORDS[kind];
    byId("text-heading").textContent = said.text;
    byId("other-field").hidden = kind !== "embedding";
    byId("text-network").textContent = title;
    byId("text-about").textContent = about;
    byId("text-status").textContent = "Ready.";
    byId("text-guesses-label").textContent = said.guesses;
    byId("text-wanted-label").textContent = said.wanted;
    byId("text-hint").textContent = said.hint;
    byId("text-class-names").replaceChildren(...classes.map((value) => make("option", { value })));
    this.wanted.placeholder = this.against.placeholder = kind === "classifier" ? "name or number" : "as it is written";
    this.method.replaceChildren(...methods.map(({ name, title }) => make("option", { value: name }, title)));
    this.reference.replaceChildren(...references.map(({ name, title }) => make("option", { value: name }, title)));
    this.adapt();
    for (const place of ["text-examples", "text-tiles"]) {
      byId(place).replaceChildren(...examples.map((texts) => make("li", {}, this.example(texts))));
    }
  }

  private example(texts: string[]): HTMLElement {
    const button = make("button", { type: "button" }, texts.join(" · "));
    button.addEventListener("click", () => {
      this.text.value = texts[0]!;
      this.other.value = texts[1] ?? "";
      this.another();
    });
    return button;
  }

  // What belongs to the method, in words.
  private adapt(): void {
    const { methods, references } = this.offer;
    byId("text-method-about").textContent = methods.find(({ name }) => name === this.method.value)!.about;
    byId("text-reference-about").textContent = `${references.find(({ name }) => name === this.reference.value)!.about}.`;
    byId("text-reference-field").hidden = this.method.value !== methods[0]!.name;
  }

  private known(typed: string): boolean {
    const { classes } = this.offer;
    return typed === "" || /^\d+$/.test(typed) || classes.some((name) => name.toLowerCase() === typed.trim().toLowerCase());
  }

  // Another text: its own best guess is asked about.
  private another(): void {
    this.wanted.value = this.against.value = "";
    this.token = null;
    this.pane.clear();
    byId("text-question").hidden = true;
    void this.explain();
  }

  private question(): Question {
    const base = { text: this.text.value, method: this.method.value, reference: byId("text-reference-field").hidden ? "" : this.reference.value };
    if (this.offer.kind === "embedding") return { ...base, other: this.other.value };
    if (this.offer.kind === "classifier") return { ...base, target: this.wanted.value, against: this.against.value };
    return { ...base, continuation: this.token === null ? this.wanted.value : "", token: this.token, against: this.against.value };
  }

  private async explain(): Promise<void> {
    this.running?.abort();
    const running = (this.running = new AbortController());
    const stage = byId("text-stage");
    const busy = byId("text-busy");
    const began = performance.now();
    const tick = (): void => {
      const seconds = Math.round((performance.now() - began) / 1000);
      busy.textContent = seconds < 2 ? "Explaining …" : `Explaining … ${seconds} s (a text of another length takes some seconds the first time)`;
    };
    tick();
    stage.setAttribute("aria-busy", "true");
    byId("text-welcome").hidden = true;
    const clock = setInterval(tick, 1000);
    const question = this.question();
    try {
      const answer = await explain(question, running.signal);
      if (running.signal.aborted) return;
      this.asked = question;
      this.refuse("");
      this.pane.show(answer, question);
      this.guesses(answer);
      if (NARROW.matches || stage.getBoundingClientRect().top < 40) stage.scrollIntoView({ block: "start" });
    } catch (error) {
      if (running.signal.aborted) return;
      this.refuse(words(error), error);
    } finally {
      clearInterval(clock);
      if (this.running === running) {
        stage.removeAttribute("aria-busy");
        busy.textContent = "";
      }
    }
  }

  private guesses(answer: Answer): void {
    byId("text-question").hidden = this.offer.kind === "embedding";
    showGuesses(
      byId("text-guesses"),
      answer.guesses.map(({ index, name, probability }, k) => ({
        name,
        probability,
        pressed: k === answer.chosen,
        choose: () => {
          this.against.value = "";
          if (this.offer.kind === "classifier") this.wanted.value = this.offer.classes[index] ?? String(index);
          else {
            this.wanted.value = "";
            this.token = index;
          }
          void this.explain();
        },
      })),
    );
  }

  // What cannot be answered, with what could be asked instead.
  private refuse(said: string, error: unknown = null): void {
    const place = byId("text-refusal");
    place.hidden = !said;
    place.replaceChildren();
    if (!said) return;
    const { words, buttons } = refusal(said, error instanceof ServerError ? error.classes : [], (number) => {
      (this.last === "against" ? this.against : this.wanted).value = this.offer.classes[Number(number)] ?? number;
      void this.explain();
    });
    place.append(...words);
    if (buttons.length) place.append(make("div", { class: "buttons" }, ...buttons));
    if (this.pane.answer) place.append(make("p", { class: "soft" }, "The previous answer is shown below."));
    if (NARROW.matches) place.scrollIntoView({ block: "nearest" });
  }
}
