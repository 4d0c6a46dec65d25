// The page: a picture, a network and a question on the left; the answer on the right, one or two side by side.

import * as api from "./api";
import { Compare } from "./compare";
import { byId, make } from "./dom";
import { GalleryPage } from "./gallery";
import { NetworkDialog } from "./network";
import { Pad, wireWriting } from "./pad";
import { Pane } from "./pane";
import { Photos, type Taken } from "./photos";
import { Question } from "./question";
import { refusal, words } from "./refusal";
import { Settings } from "./settings";
import { Tabs } from "./tabs";
import { TextPage } from "./text";
import { Toolbar } from "./toolbar";
import { offerTour } from "./tour";

const NARROW = matchMedia("(max-width: 60rem)");

class Page {
  private model: api.Model | null = null;
  private picture: Blob | null = null;
  private file = "";
  private note = "";
  private working = 0; // questions that are not answered yet
  private answered: (Taken & { model: api.Model }) | null = null; // the picture and the network that the answer belongs to
  private readonly panes: [Pane, Pane];
  private readonly select = byId<HTMLSelectElement>("model");
  private readonly status = byId("model-status");
  private readonly progress = byId<HTMLProgressElement>("model-progress");
  private readonly pad = new Pad(() => this.drawn());
  private readonly settings: Settings;
  private readonly toolbar = new Toolbar(() => this.repaint(), (node) => this.start(() => this.look(node)));
  private readonly question = new Question(() => this.start(() => this.explain()));
  private readonly compare: Compare;
  private readonly photos: Photos;
  private readonly dialog: NetworkDialog;

  constructor(private offer: api.Models) {
    const pane = (label: string): Pane =>
      new Pane(label, (name) => this.offer.models.find((model) => model.name === name)?.title ?? name, (node) => this.start(() => this.look(node)));
    this.panes = [pane("Explanation"), pane("Second explanation")];
    for (const pane of this.panes) {
      byId("panes").append(pane.element);
      byId("details").append(pane.details);
    }
    this.settings = new Settings(offer.rules, () => {
      this.question.withMethod(this.settings.method);
      this.start(() => this.explain());
    });
    this.compare = new Compare(() => this.offer.models.filter(({ kind }) => kind === this.model?.kind), () => this.start(() => this.beside()), () => this.repaint());
    this.dialog = new NetworkDialog(offer.limits.network, (model) => this.start(() => this.opened(model)), (words) => this.refuse(words));
    this.photos = new Photos(offer.limits, {
      taken: (taken) => this.take(taken),
      refused: (words) => this.refusePicture(words),
      network: (file) => this.dialog.ask(file),
    });
    wireWriting(this.pad, () => {
      this.picture = null;
      this.forget();
    });
    this.select.addEventListener("change", () => this.start(() => this.choose()));
    this.listModels(offer.chosen);
    void this.photos.offer(offer.samples);
    this.start(() => this.choose());
  }

  private start(work: () => Promise<void>): void {
    const stage = byId("stage");
    this.working += 1;
    stage.setAttribute("aria-busy", "true");
    void work().finally(() => {
      this.working -= 1;
      if (!this.working) stage.removeAttribute("aria-busy");
    });
  }

  // --- the network ---------------------------------------------------------------------------------------------------

  private listModels(chosen: string): void {
    const groups = (["photograph", "digits"] as const).map((kind) => {
      const models = this.offer.models.filter((model) => model.kind === kind);
      const options = models.map(({ name, title }) => make("option", { value: name }, title));
      return make("optgroup", { label: kind === "digits" ? "Drawn digits" : "Photographs" }, ...options);
    });
    this.select.replaceChildren(...groups.filter((group) => group.children.length));
    this.select.value = chosen;
  }

  private async opened(model: api.Model): Promise<void> {
    this.offer = await api.getModels();
    this.listModels(model.name);
    await this.choose();
  }

  private async choose(): Promise<void> {
    const name = this.select.value;
    const known = this.offer.models.find((model) => model.name === name)!;
    this.model = null;
    this.forget();
    this.question.reset();
    byId("about").textContent = known.about;
    byId("photograph").hidden = byId("begin").hidden = known.kind !== "photograph";
    byId("digits").hidden = known.kind !== "digits";
    if ((this.file === "digits.png") !== (known.kind === "digits")) {
      this.picture = null;
      byId("file-name").textContent = byId("picture-note").textContent = this.note = "";
    }
    if (known.kind === "digits" && !this.pad.empty) {
      this.picture = this.pad.picture();
      this.file = "digits.png";
    }
    try {
      const model = await this.load(name, () => this.select.value === name);
      if (!model) return;
      this.model = model;
      this.question.setNames(model.kind === "photograph" ? await api.getClasses(name) : []);
      if (this.picture) await this.explain();
      else await api.prepareModel(name); // while the user looks for a picture
    } catch (error) {
      this.status.textContent = "";
      this.refuse(words(error));
    }
  }

  // A network once it is loaded; null where that is no longer wanted.
  private async load(name: string, wanted: () => boolean): Promise<api.Model | null> {
    try {
      let model = await api.loadModel(name);
      while (model.state === "loading" && wanted()) {
        this.progress.hidden = false;
        this.status.textContent = `Loading ${model.title}: ${model.message}, ${Math.round(model.seconds)} s`;
        await new Promise((done) => setTimeout(done, 300));
        model = await api.getModel(name);
      }
      if (!wanted()) return null;
      if (model.state !== "ready") throw new Error(model.message);
      this.status.textContent = "Ready.";
      return model;
    } finally {
      if (wanted()) this.progress.hidden = true;
    }
  }

  // --- the picture ---------------------------------------------------------------------------------------------------

  take(taken: Taken): void {
    this.hold(taken);
    this.sayOfPicture("");
    this.refuse("");
    this.question.another();
    this.start(() => this.explain());
  }

  private hold({ picture, file, note }: Taken): void {
    this.picture = picture;
    this.file = file;
    this.note = note;
    byId("file-name").textContent = file;
    byId("picture-note").textContent = note;
  }

  // Said where the picture was chosen; whose answer is shown is said with it, so that it is not taken for this one's.
  private refusePicture(said: string): void {
    const { answered } = this;
    this.sayOfPicture(answered && answered.picture === this.picture ? `${said}\nThe previous answer, for ${answered.file}, is still shown.` : said);
    byId("picture-problem").scrollIntoView({ block: "nearest" });
  }

  // The picture that was explained before the one that cannot be read; the start where there is none.
  private takeBack(): void {
    if (this.answered) {
      this.hold(this.answered);
      return;
    }
    this.picture = null;
    this.forget();
    byId("file-name").textContent = byId("picture-note").textContent = this.note = "";
  }

  private drawn(): void {
    this.picture = this.pad.picture();
    this.file = "digits.png";
    this.note = "";
    this.question.another();
    this.start(() => this.explain());
  }

  private sayOfPicture(said: string): void {
    byId("picture-problem").textContent = said;
    byId("picture-problem").hidden = !said;
  }

  // --- the answer ----------------------------------------------------------------------------------------------------

  private options(): api.Options {
    return { ...this.settings.options(), ...this.question.options(this.settings.method), model: this.model!.name, file: this.file };
  }

  private async explain(): Promise<void> {
    const { model, picture, file, note } = this;
    if (!model || !picture) return;
    const [first, second] = this.panes;
    if (this.answered?.model !== model) this.forget();
    const another = this.answered?.picture !== picture;
    byId("welcome").hidden = true;
    const options = this.options();
    try {
      if (!(await first.ask(options, picture))) return;
    } catch (error) {
      if (error instanceof api.ServerError && error.ofPicture) {
        this.takeBack();
        this.refusePicture(error.message);
      } else {
        if (another) this.forget();
        this.refuse(words(error), error);
      }
      this.question.restore(first.answer);
      return;
    }
    const answer = first.answer!;
    this.answered = { picture, file, note, model };
    if (another) second.clear();
    this.refuse("");
    byId("toolbar").hidden = false;
    this.toolbar.offerMaps(answer.apart !== null, this.question.newlyAsked ? (answer.against === null ? "own" : "difference") : undefined);
    this.toolbar.offerLayers(answer.layers);
    this.question.show(answer);
    const { node } = this.toolbar.showing;
    if (node) await this.look(node, false);
    else this.repaint();
    this.comeIntoView();
    await this.beside();
  }

  // The second explanation, where one is wanted.
  private async beside(): Promise<void> {
    const [first, second] = this.panes;
    const { answer } = first;
    this.compare.offer(answer, this.settings.bias);
    const two = answer !== null && this.compare.wanted;
    byId("bench").classList.toggle("two", two);
    if (!two) {
      const was = second.answer !== null;
      second.clear();
      if (was) this.repaint();
      return;
    }
    const picture = this.picture!;
    const asked = this.options();
    try {
      const name = this.compare.model;
      if (name && !(await this.load(name, () => this.compare.model === name))) return;
      const options = this.settings.options({ ...asked, ...this.compare.instead(answer, asked) });
      if (!(await second.ask(options, picture))) return;
      await second.look(this.toolbar.showing.node);
      this.refuse("");
    } catch (error) {
      second.clear();
      byId("bench").classList.remove("two");
      this.refuse(`The second explanation cannot be shown. ${words(error)}`, error);
    }
    this.repaint();
  }

  private async look(node: string, scroll = true): Promise<void> {
    this.toolbar.choose(node);
    try {
      await Promise.all(this.panes.map((pane) => pane.look(node)));
    } catch (error) {
      this.toolbar.choose("");
      this.refuse(words(error));
    }
    this.repaint();
    if (scroll) this.comeIntoView();
  }

  private repaint(): void {
    const [first, second] = this.panes;
    const shared = this.compare.shared(first.answer, second.answer);
    for (const pane of this.panes) pane.repaint({ ...this.toolbar.showing, shared });
  }

  // On a phone the controls are below the picture; on a desk the ledger may be.
  private comeIntoView(): void {
    const top = byId("stage").getBoundingClientRect().top;
    if (NARROW.matches || top < 40) byId("stage").scrollIntoView({ block: "start" });
  }

  // Nothing of another picture or network stays.
  private forget(): void {
    for (const pane of this.panes) pane.clear();
    this.answered = null;
    this.refuse("");
    this.sayOfPicture("");
    this.compare.offer(null);
    this.question.show(null);
    byId("bench").classList.remove("two");
    byId("toolbar").hidden = true;
    byId("welcome").hidden = this.picture !== null;
  }

  // What cannot be answered, with what could be asked instead.
  private refuse(said: string, error: unknown = null): void {
    const place = byId("refusal");
    place.hidden = !said;
    place.replaceChildren();
    if (!said) return;
    const { swap, classes } = error instanceof api.ServerError ? error : { swap: null, classes: [] };
    const { words, buttons } = refusal(said, classes, (number) => this.question.correct(number));
    place.append(...words);
    if (swap) buttons.push(make("button", { type: "button", class: "swap main", click: () => this.question.ask(swap) }, "Swap the two classes"));
    if (buttons.length) place.append(make("div", { class: "buttons" }, ...buttons));
    if (this.panes[0].answer) place.append(make("p", { class: "soft" }, "The previous answer is shown below."));
    if (NARROW.matches) place.scrollIntoView({ block: "nearest" });
  }
}

async function start(): Promise<void> {
  api.takeToken();
  try {
    const offer = await api.getModels();
    let pictures: Page | null = null; // not before they are looked at: a network may have to be read
    if (offer.text) new TextPage(offer.text);
    byId("text-bench").hidden = !offer.text;
    byId("no-text").hidden = offer.text !== null;
    const tabs = new Tabs((tab) => {
      if (tab === "pictures") pictures ??= new Page(offer);
    }, offer.gallery !== null);
    if (offer.gallery) {
      const { name, title, kind } = offer.models.find((model) => model.name === offer.chosen)!;
      new GalleryPage(offer.gallery, { name, title: kind === "photograph" ? title : "" }, (taken) => {
        tabs.show("pictures");
        pictures!.take(taken);
      });
    }
    tabs.show(offer.gallery ? "gallery" : offer.text ? "texts" : "pictures");
    if (!offer.gallery && !offer.text) offerTour();
    document.body.dataset["ready"] = "yes";
  } catch (error) {
    const problem = byId("problem");
    problem.textContent = words(error);
    problem.hidden = false;
    byId("pictures").hidden = true;
  }
}

void start();
