// Built from web/src by `npm run build`; edit there.

// src/api.ts
var ServerError = class extends Error {
  constructor(status, message, swap = null, classes = []) {
    super(message);
    this.status = status;
    this.swap = swap;
    this.classes = classes;
  }
  status;
  swap;
  classes;
  // Whether the picture is to blame, and not what was asked about it.
  get ofPicture() {
    return this.status === 413 || this.status === 415;
  }
};
var KEY = "deeptaylor-token";
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, "", location.pathname);
  }
}
var AGAIN = 20;
async function send(path, init = {}) {
  const headers = { "X-Deeptaylor-Token": sessionStorage.getItem(KEY) ?? "" };
  for (let attempt = 1; ; attempt += 1) {
    let response;
    try {
      response = await fetch(path, { ...init, headers });
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") throw error;
      throw new ServerError(0, "The server does not answer. Is the command still running?");
    }
    if (response.ok) return response;
    if (response.status === 429 && attempt < AGAIN) {
      await new Promise((done) => setTimeout(done, 500 + 500 * Math.random()));
      continue;
    }
    let said = { error: `The server answered with status ${response.status}.` };
    try {
      said = await response.json();
    } catch {
    }
    throw new ServerError(response.status, said.error, said.swap ?? null, said.classes ?? []);
  }
}
async function json(response) {
  return await (await response).json();
}
var getModels = () => json(send("/api/models"));
var getModel = (name) => json(send(`/api/models/${encodeURIComponent(name)}`));
var loadModel = (name) => json(send(`/api/models/${encodeURIComponent(name)}/load`, { method: "POST" }));
var prepareModel = (name) => json(send(`/api/models/${encodeURIComponent(name)}/prepare`, { method: "POST" }));
var getClasses = (name) => json(send(`/api/models/${encodeURIComponent(name)}/classes`));
var getSample = async (name) => (await send(`/api/samples/${encodeURIComponent(name)}`)).blob();
var dropNetwork = (said, file) => json(send(`/api/networks?${new URLSearchParams(said).toString()}`, { method: "POST", body: file }));
function ask(path, options, picture2, signal) {
  const query2 = new URLSearchParams(Object.entries(options).filter(([, value]) => value !== ""));
  return send(`${path}?${query2.toString()}`, { method: "POST", body: picture2, signal: signal ?? null });
}
async function explain(options, picture2, signal) {
  const answer = await json(ask("/api/explain", options, picture2, signal));
  const apart = answer.apart && { ...answer.apart, difference: decoded(answer.apart.difference) };
  return { ...answer, heat: decoded(answer.heat), apart };
}
async function explainLayer(node, options, picture2) {
  const answer = await json(ask(`/api/layers/${encodeURIComponent(node)}`, options, picture2));
  const channels = answer.channels.map((channel) => ({ ...channel, heat: decoded(channel.heat) }));
  return { ...answer, heat: decoded(answer.heat), channels };
}
var believed = (options, picture2) => json(ask("/api/believed", options, picture2));
var heatmapPng = async (options, picture2) => (await ask("/api/heatmap.png", options, picture2)).blob();
var arrays = async (options, picture2) => (await ask("/api/explanation.npz", options, picture2)).blob();
function bytes(base64) {
  return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
}
function decoded(heat) {
  return { ...heat, values: new Float32Array(bytes(heat.values).buffer) };
}

// src/dom.ts
function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element has the id ${id}`);
  return found;
}
var TOUCHED = matchMedia("(pointer: coarse)").matches;
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (typeof value === "string") element.setAttribute(name, value);
    else if (value) element.setAttribute(name, "");
  }
  element.append(...children);
  return element;
}
function shown(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e-3 && size < 1e5 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
}
function percent(part, whole) {
  if (!(whole > 0)) return "–";
  const share = 100 * part / whole;
  const size = Math.abs(share);
  if (size === 0) return "0 %";
  if (size < 1e-3) return share > 0 ? "< 0.001 %" : "> −0.001 %";
  return `${Number(size > 99 ? share.toFixed(3) : share.toPrecision(3))} %`;
}
var count = 0;
function newId(stem) {
  count += 1;
  return `${stem}-${count}`;
}

// src/settings.ts
var METHODS = [
  ["auto", "Automatic", "the method that fits this network; the answer says which one and why"],
  ["deep-taylor", "Deep Taylor decomposition", "splits the score, layer by layer, down to the pixels"],
  ["paper", "Deep Taylor, as in the paper", "biases keep their share of the score; averages count as pooling"],
  ["secant", "Secants", "the exact difference from the picture’s own mean colour: red raises the score, blue lowers it"],
  ["attnlrp", "AttnLRP", "for attention: each factor of a product gets half; the softmax is replaced by its tangent"],
  ["cp-lrp", "CP-LRP", "treats attention and norms as constants; every layer uses the z rule"],
  ["sensitivity", "Sensitivity", "where a small change would matter most: the squared gradient"],
  ["taylor", "Taylor at the nearest root", "compares with the nearest picture that has a low score; takes some seconds"]
];
var BIASES = [
  ["returned", "redistribute their share to the pixels"],
  ["neuron", "keep their share, as in the paper"],
  ["spread", "return their share to the inputs of each neuron"]
];
var OF_ANY_SCORE = /* @__PURE__ */ new Set(["secant", "attnlrp", "sensitivity"]);
var APART = /* @__PURE__ */ new Set(["auto", "deep-taylor", "paper", "cp-lrp", "secant"]);
var DEEP = ["bias", "max_pool", "first", "above", "rules"];
var Settings = class {
  form = byId("settings");
  constructor(rules, changed) {
    const known2 = newId("rules");
    const list = make("datalist", { id: known2 }, ...rules.map((rule2) => make("option", { value: EXAMPLES[rule2] ?? rule2 })));
    const method = make("select", { name: "method" }, ...METHODS.map(([value, words2]) => make("option", { value }, words2)));
    const level = field("Level of the root", make("input", { name: "level", type: "number", min: "0", max: "0.99", step: "0.01", value: "0.1" }), "the score at the root, as a fraction of the picture’s score");
    level.classList.add("taylor");
    const biases = BIASES.map(([value, words2], k) => {
      const input = make("input", { type: "radio", name: "bias", value });
      input.checked = input.defaultChecked = k === 0;
      return make("label", {}, input, ` ${words2}`);
    });
    this.form.append(
      field("Explain with", method, " "),
      level,
      make("fieldset", { class: "deep" }, make("legend", {}, "Biases of the network"), ...biases),
      make(
        "details",
        { class: "deep" },
        make("summary", {}, "Rules"),
        field("First layer’s rule", rule("first", known2), "empty: chosen by the range of the pixels (z^B)"),
        field("Rule of the other layers", rule("above", known2), "empty: chosen by each layer’s inputs (z⁺)"),
        field(
          "Rules for single layers",
          make("input", { name: "rules", maxlength: "2000", placeholder: "conv10=eps:0.25; fire*=z+", autocomplete: "off", spellcheck: "false" }),
          "layer=rule, separated by semicolons; * matches anything"
        ),
        field(
          "Max pooling",
          make("select", { name: "max_pool" }, make("option", { value: "proportional" }, "in proportion to activations"), make("option", { value: "winner" }, "the winner takes all"))
        ),
        list
      )
    );
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("change", () => {
      this.adapt();
      changed();
    });
    this.adapt();
  }
  get method() {
    return this.get("method");
  }
  get bias() {
    return this.get("bias");
  }
  // `instead` takes the place of some of it.
  options(instead = {}) {
    return known({ ...Object.fromEntries(new FormData(this.form)), ...instead });
  }
  get(name) {
    return String(new FormData(this.form).get(name) ?? "");
  }
  adapt() {
    this.form.querySelector("small").textContent = METHODS.find(([value]) => value === this.method)[2];
    for (const part of this.form.querySelectorAll(".deep")) part.hidden = this.method !== "deep-taylor";
    for (const part of this.form.querySelectorAll(".taylor")) part.hidden = this.method !== "taylor";
  }
};
var REFERENCES = {
  secant: "the picture’s own mean colour",
  taylor: "the nearest picture with a low score"
};
function made(method, bias) {
  const named = METHODS.find(([value]) => value === method)?.[1] ?? method;
  const biases = BIASES.find(([value]) => value === bias)?.[1];
  return `Method: ${named}. Reference: ${REFERENCES[method] ?? "none"}.${biases ? ` Biases ${biases}.` : ""}`;
}
function known(options) {
  if (options["method"] !== "deep-taylor") for (const name of DEEP) delete options[name];
  if (options["method"] !== "taylor") delete options["level"];
  return options;
}
var EXAMPLES = { eps: "eps:0.25", gamma: "gamma:0.25", ab: "ab:2,1" };
function rule(name, list) {
  return make("input", { name, list, maxlength: "200", placeholder: "automatic", autocomplete: "off", spellcheck: "false" });
}
function field(words2, input, hint = "") {
  const label = make("label", { class: "field" }, make("span", {}, words2), input);
  if (hint) label.append(make("small", {}, hint));
  return label;
}

// src/compare.ts
var KINDS = [
  ["", "nothing"],
  ["target", "another class"],
  ["model", "another network"],
  ["method", "another method"],
  ["bias", "the same method with other handling of biases"]
];
var Compare = class {
  constructor(models, changed, repaint) {
    this.models = models;
    this.kinds.append(...KINDS.map(([value, words2]) => make("option", { value }, words2)));
    this.kinds.addEventListener("change", () => {
      this.beside.replaceChildren();
      changed();
    });
    this.beside.addEventListener("change", changed);
    this.same.addEventListener("change", repaint);
  }
  models;
  kinds = byId("compare");
  beside = byId("beside");
  same = byId("same-scale");
  get wanted() {
    return this.kinds.value !== "" && this.beside.value !== "";
  }
  // The network of the second explanation.
  get model() {
    return this.kinds.value === "model" ? this.beside.value : "";
  }
  // What can stand beside an answer that was made with biases treated so; the choice stays where it can.
  offer(answer, bias = "") {
    byId("compare-section").hidden = !answer;
    if (!answer) return;
    for (const option of this.kinds.options) option.hidden = option.disabled = !fits(option.value, answer);
    if (this.kinds.selectedOptions[0]?.disabled) this.kinds.value = "";
    const before = this.beside.value;
    const every = this.choices(answer, bias);
    this.beside.replaceChildren(...every.map(([value, words2]) => make("option", { value }, words2)));
    this.beside.value = every.some(([value]) => value === before) ? before : every[0]?.[0] ?? "";
    byId("beside-label").hidden = !this.kinds.value;
  }
  // The second question: the first but for one thing.
  instead(answer, asked) {
    const kind = this.kinds.value;
    const target = answer.target === null ? "" : String(answer.target);
    if (kind === "target") return { target: this.beside.value, against: "" };
    if (kind === "model") return { model: this.beside.value, target: answer.target_name };
    if (kind === "method" && !APART.has(this.beside.value)) return { method: this.beside.value, target, question: "evidence", against: "" };
    const deep = kind === "bias" ? { method: "deep-taylor" } : {};
    return { ...deep, target, [kind]: this.beside.value, against: asked["against"] ?? "" };
  }
  // One scale for both, where both are parts of the same network's scores; null where each has its own.
  shared(first, second) {
    const can = first !== null && second !== null && first.model === second.model && first.account !== null && second.account !== null;
    byId("same-label").hidden = !can;
    return can && this.same.checked ? Math.max(first.heat.scale, second.heat.scale) : null;
  }
  choices(answer, bias) {
    switch (this.kinds.value) {
      case "target":
        return answer.classes.filter(({ index }) => index !== answer.target).map(({ index, name }) => [String(index), name]);
      case "model":
        return this.models().filter(({ name }) => name !== answer.model).map(({ name, title }) => [name, title]);
      case "method":
        return METHODS.filter(([value]) => value !== answer.method && value !== "auto").map(([value, words2]) => [value, words2]);
      case "bias":
        return BIASES.filter(([value]) => value !== bias);
      default:
        return [];
    }
  }
};
function fits(kind, answer) {
  if (kind === "target") return answer.classes.length > 1;
  return kind !== "bias" || answer.method === "deep-taylor";
}

// src/gallery_api.ts
var ROOT = "/api/gallery";
function query(which) {
  const given = new URLSearchParams(Object.entries(which).filter(([, value]) => value !== ""));
  return given.size ? `?${given.toString()}` : "";
}
var getItems = (which) => json(send(`${ROOT}/items${query(which)}`));
var getItem = (number2) => json(send(`${ROOT}/items/${number2}`));
var getClusters = () => json(send(`${ROOT}/clusters`));
var beginClusters = () => json(send(`${ROOT}/clusters`, { method: "POST" }));
var getChannels = (layer) => json(send(`${ROOT}/layers/${layer}`));
var getChannel = (layer, channel) => json(send(`${ROOT}/layers/${layer}/${channel}`));
var getPicture = async (path) => (await send(path)).blob();
var meanPath = (which) => `${ROOT}/mean.png${query(which)}`;
var itemPath = (number2, kind) => `${ROOT}/items/${number2}/${kind}.png`;
var cropPath = (layer, channel, place) => `${ROOT}/layers/${layer}/${channel}/${place}/crop.png`;

// src/refusal.ts
function refusal(said, offered, correct) {
  return {
    words: [...said.split("\n"), ...offered.length ? ["Did you mean:"] : []].map((line) => make("p", {}, line)),
    buttons: offered.map(({ index, name }) => make("button", { type: "button", click: () => correct(String(index)) }, name))
  };
}
function words(error) {
  return error instanceof Error ? error.message : String(error);
}

// src/gallery_pictures.ts
var WAITING = /* @__PURE__ */ new WeakMap();
var SEEN = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      SEEN.unobserve(target);
      WAITING.get(target)?.();
    }
  },
  { rootMargin: "200px" }
);
function picture(path, alt) {
  const image = make("img", { alt });
  const place = make("span", { class: "picture" }, image);
  WAITING.set(place, () => void fill(place, image, path));
  SEEN.observe(place);
  return place;
}
function lastName(name) {
  return name.split("/").pop();
}
async function fill(place, image, path) {
  try {
    const address = URL.createObjectURL(await getPicture(path));
    image.addEventListener("load", () => {
      URL.revokeObjectURL(address);
      place.dataset["loaded"] = "yes";
    });
    image.src = address;
  } catch (error) {
    place.replaceChildren(make("span", { class: "soft" }, words(error)));
  }
}

// src/gallery_channels.ts
var CUT = "Above: the part of the photograph with most of the channel's relevance. Below: the part of the heatmap that passed through the channel.";
var NUMBER = "The number is the relevance that arrived at the channel.";
var ChannelView = class {
  constructor(layers, network, open) {
    this.network = network;
    this.open = open;
    byId("channel-section").hidden = !layers.length;
    this.layer.replaceChildren(make("option", { value: "" }, "Choose a layer"), ...layers.map((name, k) => make("option", { value: String(k) }, name)));
    this.layer.addEventListener("change", () => void this.list());
    this.channel.addEventListener("change", () => void this.show());
  }
  network;
  open;
  layer = byId("channel-layer");
  channel = byId("channel-number");
  status = byId("channel-status");
  place = byId("channel-items");
  asked = 0;
  async list() {
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
  async show() {
    const asked = this.asked += 1;
    const [layer, channel] = [Number(this.layer.value), Number(this.channel.value)];
    try {
      const { sentence, items } = await getChannel(layer, channel);
      if (asked !== this.asked) return;
      const how = make("p", { class: "soft", role: "status" });
      const list = make("ul", { class: "grid eight", "aria-label": "Items with the most relevance at the channel" });
      const fill3 = (path) => list.replaceChildren(...items.map((item, place) => this.tile(items, item, path(item, place))));
      fill3(({ index }) => itemPath(index, "small"));
      this.place.replaceChildren(make("h2", {}, sentence), how, list);
      this.place.hidden = false;
      this.place.scrollIntoView({ block: "start" });
      if (!items.length) return;
      how.textContent = "Computing the crops of this channel.";
      const refused = await this.cut(layer, channel);
      if (asked !== this.asked) return;
      how.textContent = `${refused ? `Whole photographs are shown with the heatmaps of the run. ${refused}` : CUT} ${NUMBER}`;
      if (!refused) fill3((_, place) => cropPath(layer, channel, place));
    } catch (error) {
      this.status.textContent = words(error);
    }
  }
  // Once the network is loaded, the first piece is asked for: why there is none, or nothing.
  async cut(layer, channel) {
    try {
      let model = await loadModel(this.network);
      while (model.state === "loading") {
        await new Promise((done) => setTimeout(done, 300));
        model = await getModel(this.network);
      }
      if (model.state !== "ready") return model.message;
      await getPicture(cropPath(layer, channel, 0));
      return "";
    } catch (error) {
      return words(error);
    }
  }
  tile(items, item, path) {
    const button = make("button", { type: "button", class: "tile" }, picture(path, ""), make("span", {}, item.said), make("span", { class: "soft" }, shown(item.value)), make("span", { class: "soft", title: item.name }, lastName(item.name)));
    button.addEventListener("click", () => this.open(items.map(({ index }) => index), item.index));
    return make("li", {}, button);
  }
};

// src/gallery_clusters.ts
var SVG = "http://www.w3.org/2000/svg";
var COLOURS = 12;
var ClusterMap = class {
  constructor(choose) {
    this.choose = choose;
    this.button.addEventListener("click", () => void this.find());
  }
  choose;
  button = byId("find-clusters");
  status = byId("clusters-status");
  progress = byId("clusters-progress");
  place = byId("clusters");
  buttons = [];
  svg = null;
  // Which one is looked at; empty: none.
  mark(chosen2) {
    for (const [number2, button] of this.buttons.entries()) button.setAttribute("aria-pressed", String(String(number2) === chosen2));
    if (!this.svg) return;
    for (const point of this.svg.querySelectorAll("circle")) point.classList.toggle("pale", chosen2 !== "" && point.dataset["cluster"] !== chosen2);
  }
  async find() {
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
  draw(found) {
    this.svg = this.scatter(found);
    this.buttons.push(...found.clusters.map((cluster) => this.entry(cluster)));
    this.place.replaceChildren(
      make("h2", {}, "Similar heatmaps"),
      make(
        "div",
        { class: "cluster-columns" },
        make("div", {}, this.svg, make("p", { class: "soft" }, `Similar heatmaps lie close together. Every point is an item, and every colour a cluster. Similarity: 1 if all heatmaps of a cluster are the same. ${found.note}`)),
        make("ul", { class: "cluster-list", "aria-label": "Clusters" }, ...this.buttons.map((button) => make("li", {}, button)))
      )
    );
    this.place.hidden = false;
    this.place.scrollIntoView({ block: "start" });
  }
  scatter({ clusters, points }) {
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
  entry({ number: number2, size, alike, sentence }) {
    const title = make("strong", {}, make("span", { class: `dot c${number2 % COLOURS}` }), `Cluster ${number2}: ${size.toLocaleString("en")} items`);
    const about = make("span", { class: "soft" }, `${sentence} Similarity: ${alike.toFixed(2)}`);
    const button = make("button", { type: "button", "aria-pressed": "false" }, picture(meanPath({ cluster: String(number2) }), ""), make("span", {}, title, about));
    button.addEventListener("click", () => this.choose(String(number2)));
    return button;
  }
};

// src/gallery_item.ts
var MOST = 2048;
var SHRUNK = `The photograph of the run, with at most ${MOST} pixels on a side. If it was larger, numbers differ slightly.`;
var ItemDialog = class {
  // `network`: the one that explains anew, in words; empty where none of the page explains photographs.
  constructor(network, anew) {
    this.network = network;
    this.anew = anew;
    const close = make("button", { type: "button", click: () => this.dialog.close() }, "Close");
    this.before.addEventListener("click", () => this.go(-1));
    this.after.addEventListener("click", () => this.go(1));
    this.again.addEventListener("click", () => void this.explain());
    this.dialog.append(this.title, this.body, this.problem, make("div", { class: "buttons" }, this.again, this.before, this.after, close));
    this.dialog.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) this.go(step);
    });
  }
  network;
  anew;
  dialog = byId("item-dialog");
  title = make("h2", { id: "item-title" });
  body = make("div", { class: "item-body" });
  problem = make("p", { class: "error", role: "alert", hidden: true });
  again = make("button", { type: "button", class: "main" }, "Explain it again");
  before = make("button", { type: "button" }, "Previous");
  after = make("button", { type: "button" }, "Next");
  items = [];
  place = 0;
  // One of several, through which one can go.
  show(items, item) {
    this.items = items;
    this.place = items.indexOf(item);
    this.dialog.showModal();
    void this.fill();
  }
  go(step) {
    const next = this.place + step;
    if (next < 0 || next >= this.items.length) return;
    this.place = next;
    void this.fill();
  }
  get number() {
    return this.items[this.place];
  }
  async fill() {
    const { number: number2 } = this;
    this.before.disabled = this.place === 0;
    this.after.disabled = this.place === this.items.length - 1;
    this.refuse("");
    try {
      const told = await getItem(number2);
      if (number2 !== this.number) return;
      this.title.textContent = `${told.name} (item ${number2})`;
      const figures = [
        ...told.pictured ? [figure(itemPath(number2, "seen"), "The photograph as the network saw it")] : [],
        ...told.mapped ? [figure(itemPath(number2, "heatmap"), told.pictured ? "Its heatmap over the photograph in grey" : "Its heatmap")] : []
      ];
      this.again.hidden = !told.pictured || !this.network;
      const by = this.again.hidden ? [] : [make("p", { class: "soft" }, `“Explain it again” uses the network of the tab “Pictures”, ${this.network}.`)];
      this.body.replaceChildren(make("div", { class: "figures" }, ...figures), ...told.sentences.map((said) => make("p", { class: "says" }, said)), ...by);
    } catch (error) {
      this.refuse(words(error));
    }
  }
  async explain() {
    const { number: number2 } = this;
    try {
      const taken = await getPicture(itemPath(number2, "photograph"));
      const name = this.title.textContent.replace(/ \(item \d+\)$/, "");
      const { width: width2, height } = await createImageBitmap(taken);
      this.dialog.close();
      this.anew({ picture: taken, file: name.slice(0, 200), note: Math.max(width2, height) < MOST ? "The photograph of the run." : SHRUNK });
    } catch (error) {
      this.refuse(words(error));
    }
  }
  refuse(said) {
    this.problem.textContent = said;
    this.problem.hidden = !said;
  }
};
function figure(path, caption) {
  return make("figure", {}, picture(path, ""), make("figcaption", {}, caption));
}

// src/gallery.ts
var NARROW = matchMedia("(max-width: 60rem)");
var GalleryPage = class {
  form = byId("filters");
  grid = byId("gallery-grid");
  clusters;
  dialog;
  cluster = "";
  page = 0;
  asked = 0;
  constructor(offer, network, anew) {
    this.dialog = new ItemDialog(network.title, anew);
    this.clusters = new ClusterMap((cluster) => this.choose(cluster));
    new ChannelView(offer.layers, network.name, (items, item) => this.dialog.show(items, item));
    byId("run-title").textContent = offer.title;
    byId("run-about").textContent = offer.about;
    byId("run-note").textContent = offer.note;
    byId("gallery-colours").textContent = `${offer.pictured ? "Each heatmap lies over its photograph in grey" : "Heatmaps are shown alone, each"}, in a colour scale of its own: red speaks for the class that was explained, blue against it.`;
    byId("filter-details").open = !NARROW.matches;
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
  offer(offer) {
    const fill3 = (id, all, counted) => {
      const options = counted.map(({ number: number2, name, count: count2 }) => make("option", { value: String(number2) }, `${name} (${count2.toLocaleString("en")})`));
      byId(id).replaceChildren(make("option", { value: "" }, all), ...options);
    };
    fill3("filter-prediction", "Any", offer.answers);
    fill3("filter-target", "Any", offer.explained);
    fill3("filter-label", "Any", offer.labels);
    fill3("filter-status", "Any", offer.statuses);
    byId("filter-target-field").hidden = JSON.stringify(offer.explained) === JSON.stringify(offer.answers);
    byId("filter-label-field").hidden = byId("filter-right-field").hidden = !offer.labels.length;
    for (const [id, bound] of [["filter-low", offer.lowest], ["filter-high", offer.highest]]) {
      byId(id).placeholder = bound === null ? "" : shown(bound);
    }
  }
  // The mean heatmap of every class, and a way to its items.
  means(classes) {
    const entries = classes.map(({ number: number2, name, count: count2 }) => {
      const button = make("button", { type: "button", class: "tile" }, picture(meanPath({ target: String(number2) }), ""), make("span", {}, name), make("span", { class: "soft" }, `${count2.toLocaleString("en")} items`));
      button.addEventListener("click", () => {
        this.form.reset();
        byId(byId("filter-target-field").hidden ? "filter-prediction" : "filter-target").value = String(number2);
        this.choose("");
      });
      return make("li", {}, button);
    });
    byId("class-means").replaceChildren(...entries);
  }
  choose(cluster) {
    this.cluster = cluster;
    byId("cluster-chosen").hidden = cluster === "";
    byId("cluster-chosen").textContent = `Leave cluster ${cluster}`;
    this.clusters.mark(cluster);
    this.restart();
  }
  restart() {
    this.page = 0;
    void this.show();
  }
  turn(step) {
    this.page += step;
    void this.show().then(() => byId("gallery-items").scrollIntoView({ block: "start" }));
  }
  get which() {
    const given = [...new FormData(this.form)].map(([name, value]) => [name, String(value)]);
    return { ...Object.fromEntries(given), cluster: this.cluster };
  }
  async show() {
    const asked = this.asked += 1;
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
  fill(found, which) {
    byId("gallery-sentence").textContent = `${this.cluster === "" ? "" : `Cluster ${this.cluster}: `}${found.sentence}`;
    byId("pager").hidden = found.pages < 2;
    byId("page-before").disabled = found.page === 0;
    byId("page-after").disabled = found.page === found.pages - 1;
    const mean = byId("gallery-mean");
    mean.hidden = !found.mean;
    mean.replaceChildren(...found.mean ? [picture(meanPath(which), ""), make("figcaption", {}, found.mean)] : []);
    const numbers = found.items.map(({ index }) => index);
    this.grid.replaceChildren(...found.items.map((item) => this.tile(item, numbers)));
  }
  tile(item, numbers) {
    const wrong = item.wrong ? [make("span", { class: "wrong" }, "wrong")] : [];
    const button = make("button", { type: "button", class: "tile" }, picture(itemPath(item.index, "small"), ""), make("span", {}, item.said, ...wrong), make("span", { class: "soft" }, item.score === null ? "no score" : `score ${shown(item.score)}`), make("span", { class: "soft", title: item.name }, lastName(item.name)));
    button.addEventListener("click", () => this.dialog.show(numbers, item.index));
    return make("li", {}, button);
  }
  refuse(said) {
    const place = byId("gallery-refusal");
    place.hidden = !said;
    place.replaceChildren(...said ? [make("p", {}, said)] : []);
  }
};

// src/network.ts
var USUAL = {
  size: "224",
  resize: "256",
  channels: "RGB",
  white: "1",
  mean: "0.485,0.456,0.406",
  std: "0.229,0.224,0.225",
  interpolation: "bilinear"
};
var NetworkDialog = class {
  constructor(most, loaded, refused) {
    this.most = most;
    this.loaded = loaded;
    this.refused = refused;
    const input = byId("network-file");
    input.addEventListener("change", () => {
      if (input.files?.[0]) this.ask(input.files[0]);
      input.value = "";
    });
    byId("open-network").addEventListener("click", () => input.click());
  }
  most;
  loaded;
  refused;
  dialog = byId("network-dialog");
  // Nothing is sent before the user has said how photographs are prepared, and agreed.
  ask(file) {
    const size = `${(file.size / 2 ** 20).toFixed(1)} MiB`;
    if (!/\.onnx$/i.test(file.name)) {
      this.refused(`${file.name} is not an ONNX file; the page opens only ONNX files. For other files: deeptaylor serve --model FILE.`);
      return;
    }
    if (file.size > this.most) {
      this.refused(`${file.name} is too large: ${size}; at most ${this.most / 2 ** 20} MiB are accepted. Give it to the command: deeptaylor serve --model FILE.`);
      return;
    }
    const form = make("form", { method: "dialog" });
    const problem = make("p", { class: "error", role: "alert", hidden: true });
    const go = make("button", { type: "submit", class: "main" }, "Read and explain it");
    form.append(
      make("h2", { id: "network-title" }, `Explain the network ${file.name}?`),
      make("p", {}, `The file (${size}) is sent to the program behind this page, on this machine. It is read as a list of known operations; no code in it is run. It replaces the network that was opened here before, and it is not kept when the program ends.`),
      make("p", {}, "The file does not say how photographs were preprocessed in training. Wrong values give wrong answers and no error. Please fill in:"),
      make("button", { type: "button", class: "small usual", click: () => fill2(form) }, "Fill in what is usual for ImageNet"),
      ...fields(),
      problem,
      make("div", { class: "buttons" }, go, make("button", { type: "button", click: () => this.dialog.close() }, "Cancel"))
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      go.disabled = true;
      const said = { ...Object.fromEntries(new FormData(form)), file: file.name.slice(-200) };
      dropNetwork(said, file).then((model) => {
        this.dialog.close();
        this.loaded(model);
      }).catch((error) => {
        problem.textContent = error instanceof Error ? error.message : String(error);
        problem.hidden = false;
        go.disabled = false;
      });
    });
    this.dialog.replaceChildren(form);
    this.dialog.showModal();
  }
};
function fill2(form) {
  for (const [name, value] of Object.entries(USUAL)) form.elements.namedItem(name).value = value;
}
function fields() {
  const text = (name, placeholder) => make("input", { name, required: true, maxlength: "100", placeholder, autocomplete: "off", spellcheck: "false" });
  const select = (name, every) => make("select", { name, required: true }, make("option", { value: "" }, "please choose"), ...every.map(([value, words2]) => make("option", { value }, words2)));
  return [
    make(
      "div",
      { class: "grid" },
      field("Size, in pixels", text("size", "a side, or 224x320"), "the centre crop that the network sees"),
      field("Resized first to", text("resize", "the short side, or 256x340"), "in pixels"),
      field("Channels", select("channels", [["RGB", "red, green, blue"], ["BGR", "blue, green, red"], ["L", "gray"]])),
      field("White is", select("white", [["1", "1"], ["255", "255"]]), "before the mean is subtracted"),
      field("Mean", text("mean", "one number, or one for each channel"), "subtracted"),
      field("Standard deviation", text("std", "one number, or one for each channel"), "divided by"),
      field("Interpolation", select("interpolation", [["bilinear", "bilinear"], ["bicubic", "bicubic"], ["nearest", "nearest"]])),
      field("Class names", select("names", [["none", "by their numbers"], ["imagenet", "the thousand names of ImageNet"], ["typed", "as typed below"]])),
      field("Their names", make("input", { name: "typed", maxlength: "4000", placeholder: "cat, dog, bird", autocomplete: "off", spellcheck: "false" }), "in the order of the outputs, separated by commas")
    )
  ];
}

// src/colours.ts
var RAMP = getComputedStyle(document.documentElement).getPropertyValue("--ramp").split(",").map((rgb) => rgb.trim().split(" ").map(Number));
function normalised(value, scale) {
  return Math.max(-1, Math.min(1, value / scale));
}
function colour(t) {
  const size = Math.abs(t) * (RAMP.length - 1);
  const k = Math.min(Math.floor(size), RAMP.length - 2);
  const part = size - k;
  const below = RAMP[k];
  const above = RAMP[k + 1];
  const red = below.map((c, n) => c + part * (above[n] - c));
  return t < 0 ? [red[2], red[1], red[0]] : red;
}
function heatAt(heat, x, y, width2, height) {
  const column = Math.floor((x + 0.5) * heat.width / width2);
  const row2 = Math.floor((y + 0.5) * heat.height / height);
  return heat.values[row2 * heat.width + column];
}
var STEPS = 1024;
var TABLE = Float32Array.from({ length: 3 * (2 * STEPS + 1) }, (_, k) => colour(Math.floor(k / 3) / STEPS - 1)[k % 3]);
function paintHeat(canvas, heat, scale = heat.scale) {
  canvas.width = heat.width;
  canvas.height = heat.height;
  const image = new ImageData(heat.width, heat.height);
  const { data } = image;
  heat.values.forEach((value, k) => {
    const place = 3 * Math.round((normalised(value, scale) + 1) * STEPS);
    for (let c = 0; c < 3; c += 1) data[4 * k + c] = TABLE[place + c];
    data[4 * k + 3] = 255;
  });
  context(canvas).putImageData(image, 0, 0);
}
function paintOverlay(canvas, seen2, heat, opacity, scale = heat.scale) {
  const { width: width2, height } = seen2;
  canvas.width = width2;
  canvas.height = height;
  const image = new ImageData(width2, height);
  const { data } = image;
  for (let k = 0; k < width2 * height; k += 1) {
    const value = heatAt(heat, k % width2, Math.floor(k / width2), width2, height);
    const light2 = 299 * seen2.data[4 * k] + 587 * seen2.data[4 * k + 1] + 114 * seen2.data[4 * k + 2];
    const grey = 255 - 0.6 * (255 - Math.round(light2 / 1e3));
    const t = normalised(value, scale);
    const alpha = opacity * Math.sqrt(Math.abs(t));
    const place = 3 * Math.round((t + 1) * STEPS);
    for (let c = 0; c < 3; c += 1) data[4 * k + c] = (1 - alpha) * grey + alpha * TABLE[place + c];
    data[4 * k + 3] = 255;
  }
  context(canvas).putImageData(image, 0, 0);
}
function context(canvas) {
  const found = canvas.getContext("2d", { willReadFrequently: true });
  if (!found) throw new Error("this browser cannot draw");
  return found;
}
function robustScale(values) {
  const sizes = Float32Array.from(values, Math.abs).sort();
  const place = 0.995 * (sizes.length - 1);
  const below = sizes[Math.floor(place)] ?? 0;
  const above = sizes[Math.ceil(place)] ?? 0;
  return below + (place - Math.floor(place)) * (above - below) || sizes[sizes.length - 1] || 1;
}
function where(heat) {
  if (heat.height === 1) return "";
  const rows = ["top", "middle", "bottom"];
  const columns = ["left", "centre", "right"];
  const sums = new Array(9).fill(0);
  let total = 0;
  heat.values.forEach((value, k) => {
    const row2 = Math.floor(3 * Math.floor(k / heat.width) / heat.height);
    const column = Math.floor(3 * (k % heat.width) / heat.width);
    sums[3 * row2 + column] += Math.abs(value);
    total += Math.abs(value);
  });
  if (!(total > 0)) return "It is empty.";
  const best = sums.map((sum, k) => ({ sum, name: `${rows[Math.floor(k / 3)]} ${columns[k % 3]}` }));
  best.sort((a, b) => b.sum - a.sum);
  const words2 = best.slice(0, 3).map(({ sum, name }) => `${name} ${Math.round(100 * sum / total)} %`);
  return `Most of it: ${words2.join(", ")}.`;
}

// src/pad.ts
var ROWS = 28;
var COLUMNS = 56;
var ZOOM = 10;
var PEN = 2.4;
var STROKES = [
  [[[14, 5], [10, 7], [8, 12], [8, 17], [10, 21], [14, 23], [18, 21], [20, 17], [20, 12], [18, 7], [14, 5]]],
  [[[15, 5], [14, 14], [13, 23]]],
  [[[8, 9], [11, 6], [15, 5], [18, 7], [19, 11], [16, 15], [11, 20], [8, 23], [14, 22], [21, 23]]],
  [[[8, 6], [14, 5], [18, 7], [18, 11], [13, 13], [18, 15], [20, 18], [18, 22], [13, 23], [8, 22]]],
  [[[9, 5], [8, 14], [19, 14]], [[18, 5], [18, 14], [17, 23]]],
  [[[19, 5], [10, 6], [9, 13], [15, 12], [19, 16], [18, 21], [13, 23], [8, 21]]],
  [[[17, 5], [11, 10], [9, 16], [10, 21], [14, 23], [18, 21], [18, 17], [14, 15], [10, 18]]],
  [[[8, 6], [20, 6], [16, 13], [13, 23]]],
  [[[14, 13], [10, 10], [11, 6], [15, 5], [18, 7], [17, 11], [14, 13], [10, 17], [10, 21], [14, 23], [18, 21], [18, 17], [14, 13]]],
  [[[18, 9], [14, 5], [10, 8], [11, 12], [15, 13], [18, 9], [17, 16], [15, 23]]]
];
var Pad = class {
  // called when the pen is put down
  // `changed` is called when a stroke ends.
  constructor(changed) {
    this.changed = changed;
    this.ink.width = this.canvas.width = COLUMNS * ZOOM;
    this.ink.height = this.canvas.height = ROWS * ZOOM;
    this.clear();
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this.last = this.place(event);
      this.stroke([this.last, this.last]);
      this.byHand();
      event.preventDefault();
      this.canvas.focus();
      this.showCursor(false);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.last) return;
      const next = this.place(event);
      this.stroke([this.last, next]);
      this.last = next;
    });
    const end = () => {
      if (this.last) this.changed();
      this.last = null;
    };
    this.canvas.addEventListener("pointerup", end);
    this.canvas.addEventListener("pointercancel", end);
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("focus", () => this.showCursor(this.canvas.matches(":focus-visible")));
    this.canvas.addEventListener("blur", () => this.showCursor(false));
  }
  changed;
  canvas = byId("pad");
  cursor = byId("pad-cursor");
  said = byId("pad-said");
  ink = document.createElement("canvas");
  last = null;
  pen = [14, 14];
  down = false;
  empty = true;
  byHand = () => {
  };
  clear() {
    this.wipe(0, COLUMNS);
    this.empty = true;
    this.show();
  }
  write(left, right) {
    if (left !== "kept" && right !== "kept") this.empty = true;
    [left, right].forEach((digit, half) => {
      if (digit === "kept") return;
      this.wipe(half * COLUMNS / 2, COLUMNS / 2);
      for (const points of digit === null ? [] : STROKES[digit]) {
        this.stroke(points.map(([x, y]) => [x + half * COLUMNS / 2, y]));
      }
    });
    this.show();
    this.changed();
  }
  wipe(from, columns) {
    const paper = context(this.ink);
    paper.fillStyle = "black";
    paper.fillRect(from * ZOOM, 0, columns * ZOOM, this.ink.height);
  }
  // One byte a pixel: the mean of the ink in each square.
  pixels() {
    const { data } = context(this.ink).getImageData(0, 0, this.ink.width, this.ink.height);
    const mean = new Uint8Array(ROWS * COLUMNS);
    for (let row2 = 0; row2 < ROWS; row2 += 1) {
      for (let column = 0; column < COLUMNS; column += 1) {
        let sum = 0;
        for (let y = 0; y < ZOOM; y += 1) {
          const start2 = ((row2 * ZOOM + y) * COLUMNS + column) * ZOOM * 4;
          for (let x = 0; x < ZOOM; x += 1) sum += data[start2 + 4 * x];
        }
        mean[row2 * COLUMNS + column] = Math.round(sum / ZOOM ** 2);
      }
    }
    return mean;
  }
  // A grey picture, in the plainest format there is.
  picture() {
    return new Blob([`P5
${COLUMNS} ${ROWS}
255
`, this.pixels()], { type: "image/x-portable-graymap" });
  }
  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width * COLUMNS, (event.clientY - box.top) / box.height * ROWS];
  }
  stroke(points) {
    const pen = context(this.ink);
    pen.strokeStyle = "white";
    pen.lineWidth = PEN * ZOOM;
    pen.lineCap = pen.lineJoin = "round";
    pen.beginPath();
    points.forEach(([x, y], k) => {
      const [u, v] = points[k + 1] ?? [x, y];
      if (k === 0) pen.moveTo(x * ZOOM, y * ZOOM);
      pen.quadraticCurveTo(x * ZOOM, y * ZOOM, (x + u) / 2 * ZOOM, (y + v) / 2 * ZOOM);
    });
    pen.stroke();
    this.empty = false;
    this.show();
  }
  show() {
    const paper = context(this.canvas);
    paper.drawImage(this.ink, 0, 0);
    paper.strokeStyle = "#666";
    paper.setLineDash([6, 6]);
    paper.beginPath();
    paper.moveTo(this.canvas.width / 2, 0);
    paper.lineTo(this.canvas.width / 2, this.canvas.height);
    paper.stroke();
  }
  key(event) {
    const step = event.shiftKey ? 4 : 1;
    const moves = {
      ArrowLeft: [-step, 0],
      ArrowRight: [step, 0],
      ArrowUp: [0, -step],
      ArrowDown: [0, step]
    };
    const move = moves[event.key];
    if (move) {
      const from = this.pen;
      this.pen = [clip(from[0] + move[0], COLUMNS - 1), clip(from[1] + move[1], ROWS - 1)];
      if (this.down) this.stroke([from, this.pen]);
    } else if (event.key === " ") {
      this.down = !this.down;
      if (this.down) {
        this.stroke([this.pen, this.pen]);
        this.byHand();
      } else {
        this.changed();
      }
    } else {
      return;
    }
    event.preventDefault();
    this.showCursor(true);
    const half = this.pen[0] < 28 ? "left" : "right";
    this.said.textContent = `Pen ${this.down ? "down" : "up"}, ${half} half, column ${this.pen[0]}, row ${this.pen[1]}`;
  }
  showCursor(visible2) {
    this.cursor.hidden = !visible2;
    this.cursor.classList.toggle("down", this.down);
    this.cursor.style.left = `${100 * this.pen[0] / COLUMNS}%`;
    this.cursor.style.top = `${100 * this.pen[1] / ROWS}%`;
  }
};
function clip(value, most) {
  return Math.max(0, Math.min(most, value));
}
var BY_HAND = "by hand";
function wireWriting(pad, cleared) {
  const choices = ["write-left", "write-right"].map((id, half) => {
    const select = byId(id);
    select.append(make("option", { value: BY_HAND, hidden: true, disabled: true }, "by hand"));
    select.append(make("option", { value: "" }, "nothing"));
    for (let digit = 0; digit < 10; digit += 1) select.append(make("option", { value: String(digit) }, String(digit)));
    select.value = half ? "8" : "3";
    return select;
  });
  let last = choices.map((select) => select.value);
  const restore = () => choices.forEach((select, half) => select.value === BY_HAND && (select.value = last[half]));
  pad.byHand = () => {
    last = choices.map((select, half) => select.value === BY_HAND ? last[half] : select.value);
    for (const select of choices) select.value = BY_HAND;
  };
  byId("write").addEventListener("click", () => {
    if (choices.every((select) => select.value === BY_HAND)) restore();
    const [left, right] = choices.map(({ value }) => value === BY_HAND ? "kept" : value === "" ? null : Number(value));
    pad.write(left, right);
  });
  byId("clear").addEventListener("click", () => {
    restore();
    pad.clear();
    cleared();
  });
}

// src/choice.ts
function choice(name, legend, every) {
  const labels = every.map(([value, words2], k) => {
    const input = make("input", { type: "radio", name, value });
    input.checked = k === 0;
    return make("label", {}, input, make("span", {}, words2));
  });
  return make("fieldset", { class: "switch" }, make("legend", { class: "visually-hidden" }, legend), ...labels);
}
function chosen(set) {
  return set.querySelector(":checked").value;
}

// src/ledger.ts
var QUIET = /* @__PURE__ */ new Set(["pass", "carry"]);
var Ledger = class {
  constructor(pick) {
    this.pick = pick;
  }
  pick;
  element = make("section", { class: "ledger" });
  every = false;
  chosen = "";
  list = make("ol", { class: "layers" });
  // A method that does not split the score has no account, and none is shown.
  show(account2, layers) {
    this.element.hidden = !account2;
    this.element.replaceChildren();
    if (!account2) return;
    const whole = make("div", { class: "whole", "aria-hidden": "true" });
    const words2 = make("ul", { class: "parts" });
    const parted = account2.shared > 0;
    for (const [name, part, label] of [
      ["input", account2.input, parted ? "the picture, where the class is distinctive" : "the picture"],
      ["shared", account2.shared, "the picture, where rivals have evidence as well"],
      ["bias", account2.bias, "biases and other constants of the network"],
      ["dropped", account2.dropped, "dropped (no rule could distribute it)"]
    ]) {
      if (part === 0 && name !== "input" && name !== "bias") continue;
      const bar2 = make("span", { class: name });
      bar2.style.width = width(part, account2.score);
      whole.append(bar2);
      words2.append(
        make("li", {}, make("span", { class: `dot ${name}` }), `${percent(part, account2.score)} ${label} (${shown(part)})`)
      );
    }
    if (account2.returned > 0) {
      words2.append(make("li", {}, `${percent(account2.returned, account2.score)} of the score was absorbed by biases and redistributed to the picture.`));
    }
    this.element.append(
      make("h3", {}, "Where the score went"),
      make("p", { class: "sum" }, `The score, ${shown(account2.score)}, is the sum of:`),
      whole,
      words2
    );
    if (layers.length) this.showLayers(account2, layers);
  }
  // The layer whose map is shown above.
  choose(node) {
    this.chosen = node;
    for (const button of this.list.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.dataset["node"] === node));
    }
  }
  showLayers(account2, layers) {
    const every = make("input", { type: "checkbox" });
    every.checked = this.every;
    every.addEventListener("change", () => {
      this.every = every.checked;
      this.fill(account2, layers);
    });
    this.fill(account2, layers);
    this.element.append(
      make("h3", {}, "Layer by layer"),
      make(
        "p",
        { class: "soft" },
        "From the answer (top) down to the picture (bottom). Each bar is the relevance that arrived at a layer, in per cent of the score: red was passed on, grey was absorbed by biases. Choose a layer to see its relevance over the photograph."
      ),
      make("label", { class: "every" }, every, " also list layers that only pass relevance on"),
      make("div", { class: "scroll", tabindex: "-1" }, this.list)
    );
  }
  fill(account2, layers) {
    const answer = layers[0];
    this.list.replaceChildren(
      ...visible(layers, this.every).map((layer) => {
        const bar2 = make("span", { class: "bar", "aria-hidden": "true" });
        for (const [name, part] of [
          ["input", layer.onward],
          ["bias", layer.bias],
          ["dropped", layer.dropped]
        ]) {
          const piece = make("span", { class: name });
          piece.style.width = width(part, account2.score);
          bar2.append(piece);
        }
        const words2 = [
          make("span", { class: "name" }, layer.module || layer.node, make("small", {}, ` ${layer.op}, ${layer.rule}`)),
          bar2,
          make("span", { class: "number" }, percent(layer.arrived, account2.score)),
          make("span", { class: "visually-hidden" }, ` of the score arrived; biases absorbed ${percent(layer.bias, account2.score)}`)
        ];
        if (layer === answer) return make("li", {}, make("div", { class: "row" }, ...words2));
        const button = make(
          "button",
          { type: "button", class: "row", "aria-pressed": String(layer.node === this.chosen), "data-node": layer.node },
          ...words2
        );
        button.addEventListener("click", () => this.pick(layer.node));
        return make("li", {}, button);
      })
    );
  }
};
function visible(layers, every) {
  return layers.filter((layer, k) => every || k === 0 || !QUIET.has(layer.rule) || layer.bias > 0);
}
function width(part, whole) {
  return `${Math.max(0, Math.min(100, whole > 0 ? 100 * part / whole : 0))}%`;
}

// src/picture.ts
var Picture = class {
  canvas;
  element;
  readout = make("output", { class: "readout", "aria-live": "polite" });
  mark = make("span", { class: "mark", hidden: true, "aria-hidden": "true" });
  seen = null;
  painted = null;
  at = null;
  constructor() {
    const hint = newId("hint");
    this.canvas = make("canvas", { class: "shown", role: "img", tabindex: "0", "aria-describedby": hint });
    this.element = make(
      "div",
      { class: "picture" },
      make("div", { class: "frame" }, this.canvas, this.mark),
      make("p", { id: hint, class: "visually-hidden" }, TOUCHED ? "Touch the picture to read single pixels." : "Move with the arrow keys to read single pixels; with Shift by ten.")
    );
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "touch") this.read(null);
    });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.read(null);
  }
  // No map: the photograph alone.
  show(seen2, painted, look, opacity) {
    this.seen = seen2;
    this.painted = painted;
    const strip = painted !== null && painted.heat.height === 1;
    this.canvas.classList.toggle("strip", strip);
    this.canvas.classList.toggle("crisp", look === "map");
    if (!painted || look === "photograph" && !strip) {
      this.canvas.width = seen2.width;
      this.canvas.height = seen2.height;
      context(this.canvas).putImageData(seen2, 0, 0);
      this.canvas.setAttribute("aria-label", "The picture as the network saw it");
    } else if (look === "map" || strip) {
      paintHeat(this.canvas, painted.heat, painted.scale);
      this.canvas.setAttribute("aria-label", `Map: ${painted.what}. ${where(painted.heat)}`);
    } else {
      paintOverlay(this.canvas, seen2, painted.heat, opacity, painted.scale);
      this.canvas.setAttribute("aria-label", `Map over the picture in grey: ${painted.what}. ${where(painted.heat)}`);
    }
    this.read(this.at);
  }
  // As it is shown, in a size that is worth keeping.
  png() {
    const zoom = Math.max(1, Math.ceil(896 / this.canvas.width));
    const copy = make("canvas");
    copy.width = zoom * this.canvas.width;
    copy.height = zoom * this.canvas.height;
    context(copy).drawImage(this.canvas, 0, 0, copy.width, copy.height);
    return new Promise(
      (done, failed) => copy.toBlob((blob) => blob ? done(blob) : failed(new Error("This browser could not write the picture.")), "image/png")
    );
  }
  // Pixels of the picture, or places of the strip.
  get size() {
    const heat = this.painted?.heat;
    if (heat?.height === 1) return [heat.width, 1];
    return [this.seen?.width ?? 1, this.seen?.height ?? 1];
  }
  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const [width2, height] = this.size;
    this.read([
      Math.floor((event.clientX - box.left) / box.width * width2),
      Math.floor((event.clientY - box.top) / box.height * height)
    ]);
  }
  key(event) {
    const step = event.shiftKey ? 10 : 1;
    const moves = {
      ArrowLeft: [-step, 0],
      ArrowRight: [step, 0],
      ArrowUp: [0, -step],
      ArrowDown: [0, step]
    };
    const move = moves[event.key];
    if (!move || !this.seen) return;
    const [width2, height] = this.size;
    const [x, y] = this.at ?? [width2 >> 1, height >> 1];
    this.read([x + move[0], y + move[1]]);
    event.preventDefault();
  }
  read(at) {
    const painted = this.painted;
    if (!at || !painted) {
      this.at = null;
      this.mark.hidden = true;
      this.readout.textContent = painted ? `${TOUCHED ? "Touch" : "Point at"} the picture to read single values.` : "";
      return;
    }
    const [width2, height] = this.size;
    const x = Math.max(0, Math.min(width2 - 1, at[0]));
    const y = Math.max(0, Math.min(height - 1, at[1]));
    this.at = [x, y];
    const value = heatAt(painted.heat, x, y, width2, height);
    const share = painted.whole > 0 ? `, ${percent(value, painted.whole)} of the score` : "";
    this.readout.textContent = `Column ${x}, row ${y}: ${painted.unit} ${shown(value)}${share}`;
    this.mark.hidden = false;
    this.mark.style.left = `${100 * (x + 0.5) / width2}%`;
    this.mark.style.top = `${100 * (y + 0.5) / height}%`;
  }
};

// src/taking.ts
var Taking = class {
  constructor(shown2) {
    this.shown = shown2;
  }
  shown;
  element = make("section", { class: "taking" });
  problem = make("p", { class: "error", role: "alert", hidden: true });
  show(answer, options, picture2) {
    const file = options["file"] ?? "picture.png";
    const stem = `${file.replace(/\.[^.]*$/, "") || "picture"}_${answer.method}`;
    const seen2 = new Blob([bytes(answer.seen)], { type: "image/png" });
    const python = new Blob([answer.snippet], { type: "text/plain" });
    this.problem.hidden = true;
    this.element.replaceChildren(
      make("h3", {}, "Save and reuse"),
      make(
        "div",
        { class: "buttons" },
        this.button("Picture as shown (PNG)", `${stem}_overlay.png`, this.shown),
        this.button("Heatmap (PNG)", `${stem}.png`, () => heatmapPng(options, picture2)),
        this.button("Numbers (npz)", `${stem}.npz`, () => arrays(options, picture2)),
        this.button("What the network saw (PNG)", file === "digits.png" ? "digits.png" : `${stem}_seen.png`, () => Promise.resolve(seen2)),
        this.button("Python", `${stem}.py`, () => Promise.resolve(python))
      ),
      this.problem,
      code("The same in Python", answer.snippet),
      code("The same on the command line", answer.command),
      ...answer.check ? [code("Check: does the map add up?", answer.check)] : [],
      ...answer.plan ? [code("The plan: the rule of each layer, and why", answer.plan)] : []
    );
  }
  button(words2, name, get) {
    return saving(words2, name, get, (said) => {
      this.problem.textContent = said;
      this.problem.hidden = false;
    });
  }
};
function saving(words2, name, get, refused) {
  const button = make("button", { type: "button" }, words2);
  button.addEventListener("click", () => {
    button.disabled = true;
    get().then((blob) => save(blob, name)).catch((error) => refused(error instanceof Error ? error.message : String(error))).finally(() => button.disabled = false);
  });
  return button;
}
function code(words2, text) {
  const copy = make("button", { type: "button", class: "copy" }, "Copy");
  copy.addEventListener("click", () => {
    void navigator.clipboard.writeText(text).then(
      () => copy.textContent = "Copied",
      () => copy.textContent = "Select it and copy"
    );
  });
  return make("details", {}, make("summary", {}, words2), copy, make("pre", { tabindex: "0" }, text));
}
function save(blob, name) {
  const address = URL.createObjectURL(blob);
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1e4);
}

// src/pane.ts
var FAINT = 0.2;
var UNITS = { sensitivity: "squared gradient", taylor: "relevance", "deep-taylor": "relevance" };
var Pane = class {
  constructor(label, networkTitle, pick) {
    this.networkTitle = networkTitle;
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
      this.busy
    );
    this.scales.classList.add("scales");
    this.scales.setAttribute("aria-describedby", this.scale.id = newId("scale-says"));
    this.scales.addEventListener("change", () => {
      if (this.showing) this.repaint(this.showing);
    });
    this.details.append(this.ledger.element, this.taking.element);
    this.details.hidden = true;
  }
  networkTitle;
  element;
  details = make("div", { class: "details" });
  answer = null;
  layer = null;
  seen = null;
  asked = null;
  running = null;
  picture = new Picture();
  title = make("h2", { class: "title", tabindex: "-1" });
  made = make("p", { class: "made soft" });
  busy = make("p", { class: "busy", role: "status" });
  legend = make("div", { class: "legend-row" });
  scale = make("p", { class: "scale soft" });
  scales = choice(newId("scale"), "Colour scale", [
    ["whole", "As in the whole map"],
    ["alone", "Its own"]
  ]);
  showing = null;
  layerSays = make("p", { class: "says" });
  aboutPixels = [make("div", { class: "about" }), make("div", { class: "about" })];
  // what is said of the pixels' map, above and below its colours
  channels = make("div", { class: "channels", hidden: true });
  ledger;
  taking = new Taking(() => this.picture.png());
  clear() {
    this.running?.abort();
    this.answer = this.asked = this.layer = null;
    this.element.hidden = this.details.hidden = true;
    this.element.removeAttribute("aria-busy");
  }
  // True where there is a new answer, false where another question came before it; or the server's refusal.
  async ask(options, picture2) {
    this.running?.abort();
    const running = this.running = new AbortController();
    const began = performance.now();
    const tick = () => {
      const seconds = Math.round((performance.now() - began) / 1e3);
      this.busy.textContent = seconds < 2 ? "Explaining …" : `Explaining … ${seconds} s (new settings take some seconds the first time)`;
    };
    tick();
    this.element.hidden = false;
    this.element.setAttribute("aria-busy", "true");
    const clock = setInterval(tick, 1e3);
    try {
      const answer = await explain(options, picture2, running.signal);
      const seen2 = await decoded2(answer.seen);
      if (running.signal.aborted) return false;
      this.answer = answer;
      this.seen = seen2;
      this.asked = { options, picture: picture2 };
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
  async look(node) {
    const { answer, asked } = this;
    this.layer = null;
    if (!answer || !asked || !node || !answer.layers.some((layer2) => layer2.node === node)) return;
    const layer = await explainLayer(node, asked.options, asked.picture);
    if (this.answer === answer) this.layer = layer;
  }
  repaint(showing) {
    this.showing = showing;
    if (!this.answer || !this.seen) return;
    const painted = this.painted(showing);
    this.title.textContent = this.layer?.title ?? this.answer.title;
    this.picture.show(this.seen, painted, showing.look, showing.opacity);
    this.fillLegend(painted, showing);
    this.fillChannels(showing);
    this.ledger.choose(this.layer?.node ?? "");
    this.layerSays.textContent = this.layer?.sentence ?? "";
    this.aboutPixels.forEach((part) => part.hidden = this.layer !== null);
  }
  // What is painted; nothing where there is no score to hand out.
  painted(showing) {
    const answer = this.answer;
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
  scaled(painted) {
    const alone = robustScale(painted.heat.values);
    if (chosen(this.scales) === "whole") return { ...painted, alone };
    return { ...painted, alone, scale: alone, what: `${painted.what}, with its own colour scale` };
  }
  // --- what is said --------------------------------------------------------------------------------------------------
  fill(answer) {
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
    for (const words2 of answer.sentences) above.append(make("p", { class: "says" }, words2));
    if (answer.warning) above.append(make("p", { class: "warning" }, answer.warning));
    if (answer.apart && answer.against === null) above.append(rivals(answer.apart));
    if (answer.reason) below.append(make("p", { class: "reason soft" }, answer.reason));
    if (answer.consistent) below.append(make("p", { class: "consistent" }, answer.consistent));
    if (answer.classes.length && (answer.score > 0 || OF_ANY_SCORE.has(answer.method))) below.append(this.believing());
    if (answer.notes.length) below.append(make("ul", { class: "notes soft" }, ...answer.notes.map((note) => make("li", {}, note))));
    this.ledger.show(answer.account, answer.layers);
    this.taking.show(answer, this.asked.options, this.asked.picture);
  }
  believing() {
    const said = make("p", { class: "believed", role: "status" });
    const button = make("button", { type: "button", class: "believe small" }, "Check this map: hide patches and watch the score");
    button.addEventListener("click", () => {
      const asked = this.asked;
      button.disabled = true;
      said.textContent = "Hiding patches of the picture …";
      believed(asked.options, asked.picture).then(({ area, sentence }) => {
        said.replaceChildren(make("strong", { class: "size" }, area.toFixed(2)), ` ${sentence}`);
        button.hidden = true;
      }).catch((error) => {
        said.textContent = error instanceof Error ? error.message : String(error);
        button.disabled = false;
      });
    });
    return make("div", {}, button, said);
  }
  fillLegend(painted, showing) {
    const answer = this.answer;
    this.legend.hidden = this.scale.hidden = !painted || showing.look === "photograph";
    this.scales.hidden = this.legend.hidden || painted?.alone === void 0;
    if (!painted) return;
    const difference = !this.layer && answer.apart !== null && showing.map === "difference";
    const signed2 = difference || painted.heat.values.some((value) => value < 0);
    const left = difference ? answer.against_name ? `“${answer.against_name}”` : "its rivals" : signed2 ? "against" : "0";
    const ends = [left, ...signed2 ? ["0"] : [], difference ? `“${answer.target_name}”` : answer.method === "sensitivity" ? "strong" : signed2 ? "for" : "much"];
    this.legend.replaceChildren(
      make("div", { class: signed2 ? "legend" : "legend reds", role: "img", "aria-label": `Colours from ${ends[0]} to ${ends.at(-1)}` }),
      make("div", { class: "ends", "aria-hidden": "true" }, ...ends.map((words2) => make("span", {}, words2)))
    );
    const full = `Full colour from ${painted.unit} ${shown(painted.scale)} on${painted.whole > 0 ? ` (${percent(painted.scale, painted.whole)} of the score)` : ""}`;
    const shared = showing.shared !== null && !difference;
    this.scale.textContent = this.layer ? `${full}. The scale is this picture’s own.` : shared ? `${full}, the same in both pictures: equal colours are equal relevances.` : painted.alone !== void 0 ? `${full}${compared(painted, painted.alone, `the whole map of “${answer.target_name}”`)}` : `${full}. The scale is this picture’s own.`;
  }
  fillChannels(showing) {
    const layer = this.layer;
    this.channels.hidden = !layer?.channels.length;
    if (!layer || this.channels.dataset["of"] === layer.node + this.answer.title + String(showing.opacity)) return;
    this.channels.dataset["of"] = layer.node + this.answer.title + String(showing.opacity);
    const whole = this.answer.account?.score ?? 0;
    this.channels.replaceChildren(
      make("h3", {}, `The ${layer.channels.length} channels of this layer with the most relevance`),
      make("p", { class: "soft" }, "Each has its own colour scale; below it, its part of the score."),
      make(
        "ul",
        {},
        ...layer.channels.map(({ index, total, heat }) => {
          const canvas = make("canvas", { role: "img", "aria-label": `Channel ${index} over the picture in grey` });
          paintOverlay(canvas, this.seen, heat, showing.opacity, heat.scale);
          return make("li", {}, make("figure", {}, canvas, make("figcaption", {}, `channel ${index}: `, make("span", { class: "number" }, percent(total, whole)))));
        })
      )
    );
  }
};
function compared(painted, alone, whole) {
  const times = painted.heat.scale / alone;
  if (painted.scale === painted.heat.scale) {
    const faint = `. It is barely visible at this scale: only one pixel in 200 has more than ${number(100 / times)} % of full colour.`;
    return `, as in ${whole}${1 / times < FAINT ? faint : "."}`;
  }
  return `, its own scale: colours are ${number(times)} times as strong as in ${whole}.`;
}
function number(value) {
  return String(Number(value >= 100 ? value.toFixed(0) : value.toPrecision(2)));
}
function rivals(apart) {
  const rows = apart.rivals.map(({ name, weight }) => {
    const meter = make("meter", { min: "0", max: "1", "aria-hidden": "true" });
    meter.value = weight;
    return make("li", {}, make("span", {}, name), meter, make("span", { class: "number" }, percent(weight, 1)));
  });
  if (apart.more) rows.push(make("li", {}, `and ${apart.more} more`));
  return make("div", { class: "rivals" }, make("h3", {}, "Rivals and their weights"), make("ol", {}, ...rows));
}
async function decoded2(png) {
  const bitmap = await createImageBitmap(new Blob([bytes(png)], { type: "image/png" }));
  const canvas = make("canvas");
  canvas.width = bitmap.width;
  canvas.height = bitmap.height;
  context(canvas).drawImage(bitmap, 0, 0);
  return context(canvas).getImageData(0, 0, bitmap.width, bitmap.height);
}

// src/photos.ts
var TYPES = "image/jpeg,image/png,image/webp,image/gif,image/bmp,image/tiff";
var SHRUNK2 = 2048;
var Photos = class {
  constructor(limits, events) {
    this.limits = limits;
    this.events = events;
    const input = byId("file");
    input.accept = TYPES;
    input.addEventListener("change", () => {
      if (input.files?.[0]) void this.take(input.files[0]);
      input.value = "";
    });
    for (const button of ["pick", "begin"]) byId(button).addEventListener("click", () => input.click());
    this.wireDrop();
    document.addEventListener("paste", (event) => {
      const file = event.clipboardData?.files[0];
      if (file && !byId("photograph").hidden && !byId("pictures").hidden) void this.take(file);
    });
  }
  limits;
  events;
  asked = 0;
  wireDrop() {
    const over = (on) => (event) => {
      event.preventDefault();
      document.body.classList.toggle("over", on);
    };
    for (const kind of ["dragenter", "dragover"]) document.addEventListener(kind, over(true));
    for (const kind of ["dragleave", "drop"]) document.addEventListener(kind, over(false));
    document.addEventListener("drop", (event) => {
      const file = event.dataTransfer?.files[0];
      if (!file) return;
      if (/\.onnx$/i.test(file.name)) this.events.network(file);
      else if (!byId("photograph").hidden) void this.take(file);
    });
  }
  // Thumbnails of the photographs that the server found in installed packages.
  async offer(samples) {
    if (!samples.length) return;
    byId("samples").hidden = byId("samples-label").hidden = false;
    byId("credits").textContent = `Photographs: ${samples.map(({ title, credit }) => `${title.toLowerCase()} ${credit}`).join("; ")}.`;
    const list = byId("samples").querySelector("ul");
    for (const sample of samples) {
      try {
        const picture2 = await getSample(sample.name);
        list.append(this.sample(sample, picture2, ""));
        byId("tiles").append(this.sample(sample, picture2, sample.title));
      } catch {
      }
    }
  }
  sample({ name, title }, picture2, caption) {
    const image = make("img", { alt: caption ? "" : title, src: URL.createObjectURL(picture2) });
    const button = make("button", { type: "button", class: "sample", "data-sample": name, title }, image, ...caption ? [make("span", {}, caption)] : []);
    button.addEventListener("click", () => {
      this.asked += 1;
      this.events.taken({ picture: picture2, file: `${name}.png`, note: "" });
    });
    return make("li", {}, button);
  }
  async take(file) {
    const most = this.limits.bytes;
    const asked = this.asked += 1;
    if (file.size > most) {
      this.events.refused(`${file.name} is too large: ${(file.size / 2 ** 20).toFixed(1)} MiB; at most ${most / 2 ** 20} MiB are accepted.`);
      return;
    }
    const taken = await this.shrunk(file);
    if (asked === this.asked) this.events.taken(taken);
  }
  // A photograph of more pixels than the server takes is made smaller here; what this browser cannot read is sent as it is.
  async shrunk(file) {
    const plain = { picture: file, file: file.name.slice(0, 200), note: "" };
    const image = make("img");
    const address = URL.createObjectURL(file);
    try {
      image.src = address;
      await new Promise((done, failed) => {
        image.addEventListener("load", done);
        image.addEventListener("error", failed);
      });
      const { naturalWidth: width2, naturalHeight: height } = image;
      if (width2 * height <= this.limits.pixels) return plain;
      const canvas = make("canvas");
      const factor = SHRUNK2 / Math.max(width2, height);
      canvas.width = Math.max(1, Math.round(factor * width2));
      canvas.height = Math.max(1, Math.round(factor * height));
      context(canvas).imageSmoothingQuality = "high";
      context(canvas).drawImage(image, 0, 0, canvas.width, canvas.height);
      const picture2 = await new Promise((done) => canvas.toBlob(done, "image/png"));
      if (!picture2) return plain;
      const note = `It has ${width2} × ${height} pixels and was shrunk to ${canvas.width} × ${canvas.height} before the upload. The Python code and the command read the original file, so their numbers differ slightly.`;
      return { ...plain, picture: picture2, note };
    } catch {
      return plain;
    } finally {
      URL.revokeObjectURL(address);
    }
  }
};

// src/guesses.ts
function showGuesses(list, guesses) {
  const focused = [...list.querySelectorAll("button")].findIndex((button) => button === document.activeElement);
  list.replaceChildren(...guesses.map(guess));
  list.querySelectorAll("button")[focused]?.focus();
}
function guess({ name, probability, pressed, choose }) {
  const meter = make("meter", { min: "0", max: "1", "aria-hidden": "true" });
  meter.value = probability;
  const button = make(
    "button",
    { type: "button", "aria-pressed": String(pressed), click: choose },
    make("span", {}, name),
    meter,
    make("span", { class: "number" }, `${(100 * probability).toFixed(1)} %`)
  );
  return make("li", {}, button);
}

// src/question.ts
var Question = class {
  constructor(asked) {
    this.asked = asked;
    for (const radio of this.radios()) {
      radio.addEventListener("change", () => {
        this.apart = radio.value === "apart";
        this.against = "";
        this.go();
      });
    }
    byId("other-class").addEventListener("submit", (event) => {
      event.preventDefault();
      this.askFor(this.targetField.value.trim());
    });
    byId("rather").addEventListener("submit", (event) => {
      event.preventDefault();
      const typed = this.targetField.value.trim();
      if (typed) this.target = typed;
      this.against = this.againstField.value.trim();
      this.apart = this.apart || this.against !== "";
      this.last = typed && !this.known(typed) ? "target" : "against";
      this.go();
    });
  }
  asked;
  newlyAsked = true;
  // whether another question than before was asked, and not another setting
  target = "";
  against = "";
  apart = false;
  last = "target";
  // what was typed last
  sent = { target: "", against: "", apart: false };
  // the question that was asked last, answered or not
  names = [];
  section = byId("question");
  targetField = byId("class-name");
  againstField = byId("against");
  setNames(names) {
    this.names = names;
    const options = names.map((name, k) => make("option", { value: names.indexOf(name) === names.lastIndexOf(name) ? name : String(k) }, name));
    byId("class-names").replaceChildren(...options);
  }
  options(method) {
    if (!APART.has(method)) return { target: this.target };
    return { target: this.target, against: this.against, question: this.apart ? "apart" : "evidence" };
  }
  // A new picture: its own best guess is asked about.
  another() {
    this.target = this.against = "";
    this.newlyAsked = true;
  }
  // A new network: nothing is known of its classes.
  reset() {
    this.another();
    this.apart = false;
    this.setNames([]);
  }
  // Not every method sets classes apart.
  withMethod(method) {
    const can = APART.has(method);
    this.section.querySelector(".switch").hidden = !can;
    byId("rather").hidden = !can;
    if (!can) {
      this.apart = false;
      this.against = "";
    }
  }
  // Another name in the place of the one that no class has; the rest of the question is as it was asked.
  correct(name) {
    Object.assign(this, this.sent, { [this.last]: name });
    this.go();
  }
  ask({ target, against }) {
    this.target = String(target);
    this.against = String(against);
    this.apart = true;
    this.go();
  }
  // Fields and buttons as the answer has them.
  show(answer) {
    this.section.hidden = !answer?.classes.length;
    if (!answer) return;
    this.restore(answer);
    showGuesses(
      byId("classes"),
      answer.classes.map(({ index, name, probability }) => ({
        name,
        probability,
        pressed: index === answer.target,
        choose: () => this.askFor(String(index))
      }))
    );
    this.newlyAsked = false;
  }
  // What was asked before the question that was refused.
  restore(answer) {
    if (!answer) return;
    const outside = answer.target !== null && answer.classes.every(({ index }) => index !== answer.target);
    this.against = answer.against === null ? "" : String(answer.against);
    this.apart = answer.question === "apart";
    this.target = answer.target === null || answer.target === answer.classes[0]?.index ? "" : String(answer.target);
    this.targetField.value = outside ? answer.target_name : "";
    this.againstField.value = answer.against === null ? "" : this.names[answer.against] ?? String(answer.against);
    for (const radio of this.radios()) radio.checked = radio.value === "apart" === this.apart;
  }
  known(typed) {
    return /^\d+$/.test(typed) || this.names.some((name) => name.toLowerCase() === typed.toLowerCase());
  }
  // Another class is a new question: the rival of the one before is not meant.
  askFor(target) {
    this.target = target;
    this.against = "";
    this.last = "target";
    this.go();
  }
  go() {
    this.sent = { target: this.target, against: this.against, apart: this.apart };
    this.newlyAsked = true;
    this.asked();
  }
  radios() {
    return this.section.querySelectorAll("[name=question]");
  }
};

// src/tabs.ts
var TITLES = {
  pictures: "Which pixels decided the network’s answer?",
  texts: "Which words decided the network’s answer?",
  gallery: "Which pixels decided the answers for a data set?"
};
var STAGES = { pictures: "#stage", texts: "#text-stage", gallery: "#gallery-stage" };
var ALL = ["pictures", "texts", "gallery"];
var Tabs = class {
  // `shown`: called whenever a tab comes up, also the first. That of a data set is there where a run is looked at.
  constructor(shown2, run) {
    this.shown = shown2;
    byId("tab-gallery").hidden = !run;
    const tabs = ALL.filter((tab) => tab !== "gallery" || run);
    for (const tab of tabs) {
      const button = byId(`tab-${tab}`);
      button.addEventListener("click", () => this.show(tab));
      button.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1, Home: -tabs.indexOf(tab), End: tabs.length - 1 - tabs.indexOf(tab) }[event.key];
        if (step === void 0) return;
        event.preventDefault();
        const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
        this.show(next);
        byId(`tab-${next}`).focus();
      });
    }
  }
  shown;
  show(chosen2) {
    for (const tab of ALL) {
      const button = byId(`tab-${tab}`);
      button.setAttribute("aria-selected", String(tab === chosen2));
      button.tabIndex = tab === chosen2 ? 0 : -1;
      byId(tab).hidden = tab !== chosen2;
    }
    byId("heading").textContent = TITLES[chosen2];
    document.title = `${TITLES[chosen2]} – deeptaylor`;
    document.querySelector(".skip").href = STAGES[chosen2];
    this.shown(chosen2);
  }
};

// src/text_api.ts
function ask2(path, question, signal) {
  return send(path, { method: "POST", body: JSON.stringify(question), signal: signal ?? null });
}
var explain2 = (question, signal) => json(ask2("/api/text", question, signal));
var asPage = async (question) => (await ask2("/api/text/words.html", question)).blob();
var asPicture = async (question) => (await ask2("/api/text/words.png", question)).blob();

// src/text_pane.ts
var DARK = matchMedia("(prefers-color-scheme: dark)");
var LARGEST = 8;
var DARKEST = [29, 29, 34];
var TextPane = class {
  element;
  details = make("div", { class: "details", hidden: true });
  answer = null;
  title = make("h2", { class: "title", tabindex: "-1" });
  made = make("p", { class: "made soft" });
  text = make("div", { class: "coloured", tabindex: "0", role: "region", "aria-label": "The text in colours" });
  scale = make("div", { class: "legend-row" });
  facts = make("div", { class: "facts" });
  account = make("div", { class: "account" });
  largest = make("div", { class: "largest" });
  problem = make("p", { class: "error", role: "alert", hidden: true });
  buttons = make("div", { class: "buttons" });
  whole = true;
  // sub-words are summed to words
  constructor() {
    const choice2 = (label, whole) => {
      const input = make("input", { type: "radio", name: "pieces", value: label });
      input.checked = whole === this.whole;
      input.addEventListener("change", () => {
        this.whole = whole;
        this.paint();
      });
      return make("label", {}, input, make("span", {}, label));
    };
    const pieces = make("fieldset", { class: "switch" }, make("legend", { class: "visually-hidden" }, "Colour words or tokens"), choice2("Words", true), choice2("Tokens", false));
    this.element = make(
      "article",
      { class: "text-pane", "aria-label": "Explanation", hidden: true },
      this.title,
      this.made,
      this.text,
      make("div", { class: "under" }, this.scale, pieces, this.buttons),
      this.problem,
      this.facts,
      make("div", { class: "columns" }, this.account, this.largest)
    );
    DARK.addEventListener("change", () => this.paint());
  }
  clear() {
    this.answer = null;
    this.element.hidden = this.details.hidden = true;
  }
  show(answer, question) {
    this.answer = answer;
    this.element.hidden = this.details.hidden = this.problem.hidden = false;
    this.problem.hidden = true;
    this.title.textContent = answer.title;
    this.made.textContent = answer.made;
    this.facts.replaceChildren(
      ...answer.sentences.map((words2) => make("p", { class: "says" }, words2)),
      ...answer.notes.length ? [make("ul", { class: "notes soft" }, ...answer.notes.map((note) => make("li", {}, note)))] : []
    );
    this.account.replaceChildren(make("h3", {}, "Where the score went"), account(answer.parts));
    const refused = (words2) => {
      this.problem.textContent = words2;
      this.problem.hidden = false;
    };
    this.buttons.replaceChildren(
      saving("Page (HTML)", "words.html", () => asPage(question), refused),
      saving("Picture (PNG)", "words.png", () => asPicture(question), refused)
    );
    this.details.replaceChildren(
      make(
        "section",
        { class: "taking" },
        make("h3", {}, "Save and reuse"),
        code("The account, token by token", answer.table),
        code("The same in Python", answer.snippet),
        code("The same on the command line", answer.command)
      )
    );
    this.paint();
  }
  paint() {
    if (!this.answer) return;
    const words2 = this.whole ? this.answer.words : this.answer.tokens;
    const most = Math.max(...words2.map(({ value }) => Math.abs(value)));
    const scale = most || 1;
    this.text.replaceChildren();
    for (const word of words2) {
      if (word.breaks) this.text.append(make("br"));
      this.text.append(coloured(word, scale), " ");
    }
    this.scale.replaceChildren(
      make("div", { class: "legend words", role: "img", "aria-label": "Colours from against to for" }),
      make("div", { class: "ends", "aria-hidden": "true" }, ...[`against −${shown(most)}`, "0", `for ${shown(most)}`].map((text) => make("span", {}, text)))
    );
    this.largest.replaceChildren(make("h3", {}, `Largest ${this.whole ? "words" : "tokens"}`), largest(words2, most));
  }
};
function coloured(word, scale) {
  const [background, ink] = colours(normalised(word.value, scale));
  const span = make("span", { class: word.special ? "word special" : "word", title: shown(word.value) }, word.text);
  span.style.background = background;
  span.style.color = ink;
  return span;
}
function colours(t) {
  const full = colour(Math.sign(t) / 2);
  const rgb = DARK.matches ? DARKEST.map((c, k) => c + Math.abs(t) * (full[k] - c)) : colour(t);
  return [`rgb(${rgb.map(Math.round).join(" ")})`, light(rgb) > 0.179 ? "#000" : "#fff"];
}
function light(rgb) {
  const [r, g, b] = rgb.map((c) => c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function bar(value, most) {
  const piece = make("span", { class: value < 0 ? "against" : "for" });
  piece.style.width = `${most > 0 ? 100 * Math.abs(value) / most : 0}%`;
  return make("span", { class: "bar", "aria-hidden": "true" }, piece);
}
function signed(value) {
  return shown(value).replace("-", "−");
}
function row(label, value, most, kind = "", of = "td") {
  const head = of === "th" ? make("th", { scope: "row" }, label) : make("td", {}, label);
  return make("tr", kind ? { class: kind } : {}, head, make("td", { class: "bar-cell" }, bar(value, most)), make("td", { class: "number" }, signed(value)));
}
function account(parts) {
  const most = Math.max(...parts.map(({ value }) => Math.abs(value)));
  const [score, ...rest] = parts;
  return make(
    "table",
    {},
    make("caption", { class: "visually-hidden" }, "The account of the score"),
    make("tbody", {}, ...rest.map(({ name, label, value }) => row(label, value, most, name, "th")), row(`= ${score.label}`, score.value, most, "score", "th"))
  );
}
function largest(words2, most) {
  const own = words2.filter(({ special, value }) => !special && value !== 0).sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  if (!own.length) return make("p", {}, "No word counts for or against it.");
  return make(
    "table",
    {},
    make("caption", { class: "visually-hidden" }, "The words that count most, by the size of their relevance"),
    make("thead", { class: "visually-hidden" }, make("tr", {}, ...["Word", "Size", "Relevance"].map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...own.slice(0, LARGEST).map(({ text, value }) => row(text, value, most, "", "th")))
  );
}

// src/text.ts
var NARROW2 = matchMedia("(max-width: 60rem)");
var WORDS = {
  classifier: { text: "Text", guesses: "Classes with the highest probability:", wanted: "or another", hint: "" },
  "language model": {
    text: "Prompt",
    guesses: "Most likely next tokens:",
    wanted: "or another continuation",
    hint: "Begin with a space where a new word follows: most tokenizers have other tokens for “ Paris” than for “Paris”."
  },
  "encoder–decoder": { text: "What the encoder reads", guesses: "Most likely first tokens:", wanted: "or another output", hint: "" },
  embedding: { text: "Two texts", guesses: "", wanted: "", hint: "" }
};
var TextPage = class {
  constructor(offer) {
    this.offer = offer;
    byId("text-panes").append(this.pane.element);
    byId("text-details").append(this.pane.details);
    this.fill();
    byId("text-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.another();
    });
    for (const field2 of [this.text, this.other]) {
      field2.addEventListener("keydown", (event) => {
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
  offer;
  running = null;
  asked = null;
  // the question that the answer belongs to
  last = "target";
  // what was typed last
  token = null;
  // chosen among the likeliest
  pane = new TextPane();
  text = byId("text");
  other = byId("other-text");
  wanted = byId("text-wanted");
  against = byId("text-against");
  method = byId("text-method");
  reference = byId("text-reference");
  fill() {
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
    this.method.replaceChildren(...methods.map(({ name, title: title2 }) => make("option", { value: name }, title2)));
    this.reference.replaceChildren(...references.map(({ name, title: title2 }) => make("option", { value: name }, title2)));
    this.adapt();
    for (const place of ["text-examples", "text-tiles"]) {
      byId(place).replaceChildren(...examples.map((texts) => make("li", {}, this.example(texts))));
    }
  }
  example(texts) {
    const button = make("button", { type: "button" }, texts.join(" · "));
    button.addEventListener("click", () => {
      this.text.value = texts[0];
      this.other.value = texts[1] ?? "";
      this.another();
    });
    return button;
  }
  // What belongs to the method, in words.
  adapt() {
    const { methods, references } = this.offer;
    byId("text-method-about").textContent = methods.find(({ name }) => name === this.method.value).about;
    byId("text-reference-about").textContent = `${references.find(({ name }) => name === this.reference.value).about}.`;
    byId("text-reference-field").hidden = this.method.value !== methods[0].name;
  }
  known(typed) {
    const { classes } = this.offer;
    return typed === "" || /^\d+$/.test(typed) || classes.some((name) => name.toLowerCase() === typed.trim().toLowerCase());
  }
  // Another text: its own best guess is asked about.
  another() {
    this.wanted.value = this.against.value = "";
    this.token = null;
    this.pane.clear();
    byId("text-question").hidden = true;
    void this.explain();
  }
  question() {
    const base = { text: this.text.value, method: this.method.value, reference: byId("text-reference-field").hidden ? "" : this.reference.value };
    if (this.offer.kind === "embedding") return { ...base, other: this.other.value };
    if (this.offer.kind === "classifier") return { ...base, target: this.wanted.value, against: this.against.value };
    return { ...base, continuation: this.token === null ? this.wanted.value : "", token: this.token, against: this.against.value };
  }
  async explain() {
    this.running?.abort();
    const running = this.running = new AbortController();
    const stage = byId("text-stage");
    const busy = byId("text-busy");
    const began = performance.now();
    const tick = () => {
      const seconds = Math.round((performance.now() - began) / 1e3);
      busy.textContent = seconds < 2 ? "Explaining …" : `Explaining … ${seconds} s (a text of another length takes some seconds the first time)`;
    };
    tick();
    stage.setAttribute("aria-busy", "true");
    byId("text-welcome").hidden = true;
    const clock = setInterval(tick, 1e3);
    const question = this.question();
    try {
      const answer = await explain2(question, running.signal);
      if (running.signal.aborted) return;
      this.asked = question;
      this.refuse("");
      this.pane.show(answer, question);
      this.guesses(answer);
      if (NARROW2.matches || stage.getBoundingClientRect().top < 40) stage.scrollIntoView({ block: "start" });
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
  guesses(answer) {
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
        }
      }))
    );
  }
  // What cannot be answered, with what could be asked instead.
  refuse(said, error = null) {
    const place = byId("text-refusal");
    place.hidden = !said;
    place.replaceChildren();
    if (!said) return;
    const { words: words2, buttons } = refusal(said, error instanceof ServerError ? error.classes : [], (number2) => {
      (this.last === "against" ? this.against : this.wanted).value = this.offer.classes[Number(number2)] ?? number2;
      void this.explain();
    });
    place.append(...words2);
    if (buttons.length) place.append(make("div", { class: "buttons" }, ...buttons));
    if (this.pane.answer) place.append(make("p", { class: "soft" }, "The previous answer is shown below."));
    if (NARROW2.matches) place.scrollIntoView({ block: "nearest" });
  }
};

// src/toolbar.ts
var Toolbar = class {
  looks = choice("look", "Show", [
    ["overlay", "Over the photo"],
    ["map", "Map alone"],
    ["photograph", "Photo"]
  ]);
  maps = choice("map", "Map", [
    ["own", "Specific part"],
    ["difference", "Difference"]
  ]);
  slider = make("input", { type: "range", min: "0", max: "100", value: "85", class: "opacity" });
  layer = make("select", { id: "layer" });
  layerLabel = make("label", {}, "Where ", this.layer);
  constructor(repaint, look) {
    const strength = make("label", { class: "strength" }, "Strength ", this.slider);
    byId("toolbar").append(this.looks, strength, this.maps, this.layerLabel);
    this.slider.addEventListener("input", repaint);
    for (const set of [this.looks, this.maps]) set.addEventListener("change", repaint);
    this.layer.addEventListener("change", () => look(this.layer.value));
  }
  get showing() {
    return {
      look: chosen(this.looks),
      map: chosen(this.maps),
      opacity: Number(this.slider.value) / 100,
      node: this.layer.value
    };
  }
  // The two maps of a class that is set apart, if it is.
  offerMaps(apart, first) {
    this.maps.hidden = !apart;
    if (first) this.maps.querySelector(`[value=${first}]`).checked = true;
  }
  offerLayers(layers) {
    const before = this.layer.value;
    const below = visible(layers, false).slice(1);
    this.layer.replaceChildren(
      make("option", { value: "" }, "at the pixels"),
      ...below.map(({ node, module, op }) => make("option", { value: node }, `at ${module || node} (${op})`))
    );
    this.layerLabel.hidden = !below.length;
    this.choose(layers.slice(1).some(({ node }) => node === before) ? before : "");
  }
  choose(node) {
    if (![...this.layer.options].some(({ value }) => value === node)) this.layer.append(make("option", { value: node }, `at ${node}`));
    this.layer.value = node;
  }
};

// src/tour.ts
var SEEN2 = "deeptaylor-tour";
var STEPS2 = [
  {
    title: "Choose a photograph",
    text: "Pick, drop or paste a photograph, or take an example. The network names what it sees, and the page shows which pixels decided that.",
    place: "#photograph"
  },
  {
    title: "Read the answer",
    text: "Red pixels raise the score of the class. Point at the picture to read their values. Below it, the ledger shows where the whole score went.",
    place: "#stage"
  },
  {
    title: "Ask further",
    text: "Choose another class, another network or another method, or put two explanations side by side. “Check this map” hides parts of the picture and measures how the score changes.",
    place: ".controls"
  }
];
function offerTour() {
  if (seen()) return;
  const dialog = byId("tour");
  const title = make("h2", { id: "tour-title" });
  const text = make("p", {});
  const next = make("button", { type: "button", class: "main" });
  const skip = make("button", { type: "button" }, "Skip the tour");
  let step = 0;
  const mark = (place) => {
    for (const marked of document.querySelectorAll(".toured")) marked.classList.remove("toured");
    if (place) document.querySelector(place)?.classList.add("toured");
  };
  const end = () => {
    mark("");
    dialog.close();
  };
  const show = () => {
    const { title: name, text: words2, place } = STEPS2[step];
    title.textContent = `${step + 1} of ${STEPS2.length}: ${name}`;
    text.textContent = words2;
    const last = step === STEPS2.length - 1;
    next.textContent = last ? "Start" : "Next";
    skip.hidden = last;
    mark(place);
  };
  next.addEventListener("click", () => {
    step += 1;
    if (step < STEPS2.length) show();
    else end();
  });
  skip.addEventListener("click", end);
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "Escape") end();
  });
  dialog.replaceChildren(title, text, make("div", { class: "buttons" }, next, skip));
  show();
  dialog.show();
}
function seen() {
  try {
    const before = localStorage.getItem(SEEN2) !== null;
    localStorage.setItem(SEEN2, "shown");
    return before;
  } catch {
    return true;
  }
}

// src/main.ts
var NARROW3 = matchMedia("(max-width: 60rem)");
var Page = class {
  constructor(offer) {
    this.offer = offer;
    const pane = (label) => new Pane(label, (name) => this.offer.models.find((model) => model.name === name)?.title ?? name, (node) => this.start(() => this.look(node)));
    this.panes = [pane("Explanation"), pane("Second explanation")];
    for (const pane2 of this.panes) {
      byId("panes").append(pane2.element);
      byId("details").append(pane2.details);
    }
    this.settings = new Settings(offer.rules, () => {
      this.question.withMethod(this.settings.method);
      this.start(() => this.explain());
    });
    this.compare = new Compare(() => this.offer.models.filter(({ kind }) => kind === this.model?.kind), () => this.start(() => this.beside()), () => this.repaint());
    this.dialog = new NetworkDialog(offer.limits.network, (model) => this.start(() => this.opened(model)), (words2) => this.refuse(words2));
    this.photos = new Photos(offer.limits, {
      taken: (taken) => this.take(taken),
      refused: (words2) => this.refusePicture(words2),
      network: (file) => this.dialog.ask(file)
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
  offer;
  model = null;
  picture = null;
  file = "";
  note = "";
  working = 0;
  // questions that are not answered yet
  answered = null;
  // the picture and the network that the answer belongs to
  panes;
  select = byId("model");
  status = byId("model-status");
  progress = byId("model-progress");
  pad = new Pad(() => this.drawn());
  settings;
  toolbar = new Toolbar(() => this.repaint(), (node) => this.start(() => this.look(node)));
  question = new Question(() => this.start(() => this.explain()));
  compare;
  photos;
  dialog;
  start(work) {
    const stage = byId("stage");
    this.working += 1;
    stage.setAttribute("aria-busy", "true");
    void work().finally(() => {
      this.working -= 1;
      if (!this.working) stage.removeAttribute("aria-busy");
    });
  }
  // --- the network ---------------------------------------------------------------------------------------------------
  listModels(chosen2) {
    const groups = ["photograph", "digits"].map((kind) => {
      const models = this.offer.models.filter((model) => model.kind === kind);
      const options = models.map(({ name, title }) => make("option", { value: name }, title));
      return make("optgroup", { label: kind === "digits" ? "Drawn digits" : "Photographs" }, ...options);
    });
    this.select.replaceChildren(...groups.filter((group) => group.children.length));
    this.select.value = chosen2;
  }
  async opened(model) {
    this.offer = await getModels();
    this.listModels(model.name);
    await this.choose();
  }
  async choose() {
    const name = this.select.value;
    const known2 = this.offer.models.find((model) => model.name === name);
    this.model = null;
    this.forget();
    this.question.reset();
    byId("about").textContent = known2.about;
    byId("photograph").hidden = byId("begin").hidden = known2.kind !== "photograph";
    byId("digits").hidden = known2.kind !== "digits";
    if (this.file === "digits.png" !== (known2.kind === "digits")) {
      this.picture = null;
      byId("file-name").textContent = byId("picture-note").textContent = this.note = "";
    }
    if (known2.kind === "digits" && !this.pad.empty) {
      this.picture = this.pad.picture();
      this.file = "digits.png";
    }
    try {
      const model = await this.load(name, () => this.select.value === name);
      if (!model) return;
      this.model = model;
      this.question.setNames(model.kind === "photograph" ? await getClasses(name) : []);
      if (this.picture) await this.explain();
      else await prepareModel(name);
    } catch (error) {
      this.status.textContent = "";
      this.refuse(words(error));
    }
  }
  // A network once it is loaded; null where that is no longer wanted.
  async load(name, wanted) {
    try {
      let model = await loadModel(name);
      while (model.state === "loading" && wanted()) {
        this.progress.hidden = false;
        this.status.textContent = `Loading ${model.title}: ${model.message}, ${Math.round(model.seconds)} s`;
        await new Promise((done) => setTimeout(done, 300));
        model = await getModel(name);
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
  take(taken) {
    this.hold(taken);
    this.sayOfPicture("");
    this.refuse("");
    this.question.another();
    this.start(() => this.explain());
  }
  hold({ picture: picture2, file, note }) {
    this.picture = picture2;
    this.file = file;
    this.note = note;
    byId("file-name").textContent = file;
    byId("picture-note").textContent = note;
  }
  // Said where the picture was chosen; whose answer is shown is said with it, so that it is not taken for this one's.
  refusePicture(said) {
    const { answered } = this;
    this.sayOfPicture(answered && answered.picture === this.picture ? `${said}
The previous answer, for ${answered.file}, is still shown.` : said);
    byId("picture-problem").scrollIntoView({ block: "nearest" });
  }
  // The picture that was explained before the one that cannot be read; the start where there is none.
  takeBack() {
    if (this.answered) {
      this.hold(this.answered);
      return;
    }
    this.picture = null;
    this.forget();
    byId("file-name").textContent = byId("picture-note").textContent = this.note = "";
  }
  drawn() {
    this.picture = this.pad.picture();
    this.file = "digits.png";
    this.note = "";
    this.question.another();
    this.start(() => this.explain());
  }
  sayOfPicture(said) {
    byId("picture-problem").textContent = said;
    byId("picture-problem").hidden = !said;
  }
  // --- the answer ----------------------------------------------------------------------------------------------------
  options() {
    return { ...this.settings.options(), ...this.question.options(this.settings.method), model: this.model.name, file: this.file };
  }
  async explain() {
    const { model, picture: picture2, file, note } = this;
    if (!model || !picture2) return;
    const [first, second] = this.panes;
    if (this.answered?.model !== model) this.forget();
    const another = this.answered?.picture !== picture2;
    byId("welcome").hidden = true;
    const options = this.options();
    try {
      if (!await first.ask(options, picture2)) return;
    } catch (error) {
      if (error instanceof ServerError && error.ofPicture) {
        this.takeBack();
        this.refusePicture(error.message);
      } else {
        if (another) this.forget();
        this.refuse(words(error), error);
      }
      this.question.restore(first.answer);
      return;
    }
    const answer = first.answer;
    this.answered = { picture: picture2, file, note, model };
    if (another) second.clear();
    this.refuse("");
    byId("toolbar").hidden = false;
    this.toolbar.offerMaps(answer.apart !== null, this.question.newlyAsked ? answer.against === null ? "own" : "difference" : void 0);
    this.toolbar.offerLayers(answer.layers);
    this.question.show(answer);
    const { node } = this.toolbar.showing;
    if (node) await this.look(node, false);
    else this.repaint();
    this.comeIntoView();
    await this.beside();
  }
  // The second explanation, where one is wanted.
  async beside() {
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
    const picture2 = this.picture;
    const asked = this.options();
    try {
      const name = this.compare.model;
      if (name && !await this.load(name, () => this.compare.model === name)) return;
      const options = this.settings.options({ ...asked, ...this.compare.instead(answer, asked) });
      if (!await second.ask(options, picture2)) return;
      await second.look(this.toolbar.showing.node);
      this.refuse("");
    } catch (error) {
      second.clear();
      byId("bench").classList.remove("two");
      this.refuse(`The second explanation cannot be shown. ${words(error)}`, error);
    }
    this.repaint();
  }
  async look(node, scroll = true) {
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
  repaint() {
    const [first, second] = this.panes;
    const shared = this.compare.shared(first.answer, second.answer);
    for (const pane of this.panes) pane.repaint({ ...this.toolbar.showing, shared });
  }
  // On a phone the controls are below the picture; on a desk the ledger may be.
  comeIntoView() {
    const top = byId("stage").getBoundingClientRect().top;
    if (NARROW3.matches || top < 40) byId("stage").scrollIntoView({ block: "start" });
  }
  // Nothing of another picture or network stays.
  forget() {
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
  refuse(said, error = null) {
    const place = byId("refusal");
    place.hidden = !said;
    place.replaceChildren();
    if (!said) return;
    const { swap, classes } = error instanceof ServerError ? error : { swap: null, classes: [] };
    const { words: words2, buttons } = refusal(said, classes, (number2) => this.question.correct(number2));
    place.append(...words2);
    if (swap) buttons.push(make("button", { type: "button", class: "swap main", click: () => this.question.ask(swap) }, "Swap the two classes"));
    if (buttons.length) place.append(make("div", { class: "buttons" }, ...buttons));
    if (this.panes[0].answer) place.append(make("p", { class: "soft" }, "The previous answer is shown below."));
    if (NARROW3.matches) place.scrollIntoView({ block: "nearest" });
  }
};
async function start() {
  takeToken();
  try {
    const offer = await getModels();
    let pictures = null;
    if (offer.text) new TextPage(offer.text);
    byId("text-bench").hidden = !offer.text;
    byId("no-text").hidden = offer.text !== null;
    const tabs = new Tabs((tab) => {
      if (tab === "pictures") pictures ??= new Page(offer);
    }, offer.gallery !== null);
    if (offer.gallery) {
      const { name, title, kind } = offer.models.find((model) => model.name === offer.chosen);
      new GalleryPage(offer.gallery, { name, title: kind === "photograph" ? title : "" }, (taken) => {
        tabs.show("pictures");
        pictures.take(taken);
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
