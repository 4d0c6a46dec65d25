// What is asked: of which class, all evidence or what sets it apart, from all rivals or from one.
// Names go to the server as they were typed; the fields then show what it answered.

import type { Answer, Options, Swap } from "./api";
import { byId, make } from "./dom";
import { showGuesses } from "./guesses";
import { APART } from "./settings";

export class Question {
  newlyAsked = true; // whether another question than before was asked, and not another setting
  private target = "";
  private against = "";
  private apart = false;
  private last: "target" | "against" = "target"; // what was typed last
  private sent = { target: "", against: "", apart: false }; // the question that was asked last, answered or not
  private names: string[] = [];
  private readonly section = byId("question");
  private readonly targetField = byId<HTMLInputElement>("class-name");
  private readonly againstField = byId<HTMLInputElement>("against");

  constructor(private readonly asked: () => void) {
    for (const radio of this.radios()) {
      radio.addEventListener("change", () => {
        this.apart = radio.value === "apart";
        this.against = "";
        this.go();
      });
    }
    byId<HTMLFormElement>("other-class").addEventListener("submit", (event) => {
      event.preventDefault();
      this.askFor(this.targetField.value.trim());
    });
    byId<HTMLFormElement>("rather").addEventListener("submit", (event) => {
      event.preventDefault();
      // The two fields read as one sentence: a class that was typed above is the one that is meant.
      const typed = this.targetField.value.trim();
      if (typed) this.target = typed;
      this.against = this.againstField.value.trim();
      this.apart = this.apart || this.against !== "";
      this.last = typed && !this.known(typed) ? "target" : "against";
      this.go();
    });
  }

  setNames(names: string[]): void {
    this.names = names;
    // Of a name that several classes have, the number.
    const options = names.map((name, k) => make("option", { value: names.indexOf(name) === names.lastIndexOf(name) ? name : String(k) }, name));
    byId("class-names").replaceChildren(...options);
  }

  options(method: string): Options {
    if (!APART.has(method)) return { target: this.target };
    return { target: this.target, against: this.against, question: this.apart ? "apart" : "evidence" };
  }

  // A new picture: its own best guess is asked about.
  another(): void {
    this.target = this.against = "";
    this.newlyAsked = true;
  }

  // A new network: nothing is known of its classes.
  reset(): void {
    this.another();
    this.apart = false;
    this.setNames([]);
  }

  // Not every method sets classes apart.
  withMethod(method: string): void {
    const can = APART.has(method);
    this.section.querySelector<HTMLElement>(".switch")!.hidden = !can;
    byId("rather").hidden = !can;
    if (!can) {
      this.apart = false;
      this.against = "";
    }
  }

  // Another name in the place of the one that no class has; the rest of the question is as it was asked.
  correct(name: string): void {
    Object.assign(this, this.sent, { [this.last]: name });
    this.go();
  }

  ask({ target, against }: Swap): void {
    this.target = String(target);
    this.against = String(against);
    this.apart = true;
    this.go();
  }

  // Fields and buttons as the answer has them.
  show(answer: Answer | null): void {
    this.section.hidden = !answer?.classes.length;
    if (!answer) return;
    this.restore(answer);
    showGuesses(
      byId("classes"),
      answer.classes.map(({ index, name, probability }) => ({
        name,
        probability,
        pressed: index === answer.target,
        choose: () => this.askFor(String(index)),
      })),
    );
    this.newlyAsked = false;
  }

  // What was asked before the question that was refused.
  restore(answer: Answer | null): void {
    if (!answer) return;
    const outside = answer.target !== null && answer.classes.every(({ index }) => index !== answer.target);
    this.against = answer.against === null ? "" : String(answer.against);
    this.apart = answer.question === "apart";
    this.target = answer.target === null || answer.target === answer.classes[0]?.index ? "" : String(answer.target);
    this.targetField.value = outside ? answer.target_name : "";
    this.againstField.value = answer.against === null ? "" : (this.names[answer.against] ?? String(answer.against));
    for (const radio of this.radios()) radio.checked = (radio.value === "apart") === this.apart;
  }

  private known(typed: string): boolean {
    return /^\d+$/.test(typed) || this.names.some((name) => name.toLowerCase() === typed.toLowerCase());
  }

  // Another class is a new question: the rival of the one before is not meant.
  private askFor(target: string): void {
    this.target = target;
    this.against = "";
    this.last = "target";
    this.go();
  }

  private go(): void {
    this.sent = { target: this.target, against: this.against, apart: this.apart };
    this.newlyAsked = true;
    this.asked();
  }

  private radios(): NodeListOf<HTMLInputElement> {
    return this.section.querySelectorAll<HTMLInputElement>("[name=question]");
  }
}
