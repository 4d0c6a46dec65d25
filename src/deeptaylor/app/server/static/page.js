// Built from web/src by `npm run build`; edit there.

// src/api.ts
var ServerError = class extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
  status;
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
    let words = `The server answered with status ${response.status}.`;
    try {
      words = (await response.json()).error;
    } catch {
    }
    throw new ServerError(response.status, words);
  }
}
async function json(response) {
  return await (await response).json();
}
var getModels = () => json(send("/api/models"));
var getModel = (name) => json(send(`/api/models/${encodeURIComponent(name)}`));
var loadModel = (name) => json(send(`/api/models/${encodeURIComponent(name)}/load`, { method: "POST" }));
var getClasses = (name) => json(send(`/api/models/${encodeURIComponent(name)}/classes`));
function ask(path, options, picture, signal) {
  const query = new URLSearchParams(Object.entries(options).filter(([, value]) => value !== ""));
  return send(`${path}?${query.toString()}`, { method: "POST", body: picture, signal: signal ?? null });
}
async function explain(options, picture, signal) {
  const answer = await json(ask("/api/explain", options, picture, signal));
  return { ...answer, heat: decoded(answer.heat) };
}
async function explainLayer(node, options, picture) {
  const answer = await json(ask(`/api/layers/${encodeURIComponent(node)}`, options, picture));
  return { ...answer, heat: decoded(answer.heat) };
}
var heatmapPng = async (options, picture) => (await ask("/api/heatmap.png", options, picture)).blob();
var arrays = async (options, picture) => (await ask("/api/explanation.npz", options, picture)).blob();
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

// src/colours.ts
var ANCHORS = [
  [255, 255, 255],
  [250, 92, 70],
  [150, 0, 16]
];
function normalised(value, scale) {
  return Math.max(-1, Math.min(1, value / scale));
}
function colour(t) {
  const size = Math.abs(t) * 2;
  const k = size >= 1 ? 1 : 0;
  const part = size - k;
  const below = ANCHORS[k];
  const above = ANCHORS[k + 1];
  const red = below.map((c, n) => c + part * (above[n] - c));
  return t < 0 ? [red[2], red[1], red[0]] : red;
}
function paintHeat(canvas, heat, scale = heat.scale) {
  canvas.width = heat.width;
  canvas.height = heat.height;
  const image = new ImageData(heat.width, heat.height);
  heat.values.forEach((value, k) => {
    image.data.set([...colour(normalised(value, scale)).map(Math.round), 255], 4 * k);
  });
  context(canvas).putImageData(image, 0, 0);
}
function paintOverlay(canvas, seen, heat, opacity, scale = heat.scale) {
  canvas.width = heat.width;
  canvas.height = heat.height;
  const image = new ImageData(heat.width, heat.height);
  heat.values.forEach((value, k) => {
    const [r, g, b] = [seen.data[4 * k], seen.data[4 * k + 1], seen.data[4 * k + 2]];
    const grey = 255 - 0.6 * (255 - Math.round((299 * r + 587 * g + 114 * b) / 1e3));
    const t = normalised(value, scale);
    const alpha = opacity * Math.sqrt(Math.abs(t));
    const mixed = colour(t).map((c) => Math.round((1 - alpha) * grey + alpha * Math.round(c)));
    image.data.set([...mixed, 255], 4 * k);
  });
  context(canvas).putImageData(image, 0, 0);
}
function context(canvas) {
  const found = canvas.getContext("2d", { willReadFrequently: true });
  if (!found) throw new Error("this browser cannot draw");
  return found;
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
    for (let row = 0; row < ROWS; row += 1) {
      for (let column = 0; column < COLUMNS; column += 1) {
        let sum = 0;
        for (let y = 0; y < ZOOM; y += 1) {
          const start2 = ((row * ZOOM + y) * COLUMNS + column) * ZOOM * 4;
          for (let x = 0; x < ZOOM; x += 1) sum += data[start2 + 4 * x];
        }
        mean[row * COLUMNS + column] = Math.round(sum / ZOOM ** 2);
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
  showCursor(visible) {
    this.cursor.hidden = !visible;
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
  layer = make("div", { class: "layer", "aria-live": "polite" });
  show(account, layers) {
    this.chosen = "";
    this.layer.replaceChildren();
    const whole = make("div", { class: "whole", "aria-hidden": "true" });
    const words = make("ul", { class: "parts" });
    for (const [name, part, label] of [
      ["input", account.input, "the picture"],
      ["bias", account.bias, "biases and other constants of the network"],
      ["dropped", account.dropped, "dropped (no rule could hand it on)"],
      ["residual", account.residual, "not handed out by this method"]
    ]) {
      if (part === 0 && name !== "input" && name !== "bias") continue;
      const bar = make("span", { class: name });
      bar.style.width = `${Math.max(0, Math.min(100, account.score > 0 ? 100 * part / account.score : 0))}%`;
      whole.append(bar);
      words.append(
        make("li", {}, make("span", { class: `dot ${name}` }), `${percent(part, account.score)} ${label} (${shown(part)})`)
      );
      if (name === "input" && account.returned > 0) {
        words.append(make("li", {}, `of which biases handed back ${percent(account.returned, account.score)}`));
      }
    }
    this.element.replaceChildren(
      make("h4", {}, "Where the score went"),
      make("p", { class: "sum" }, `The score, ${shown(account.score)}, is the sum of:`),
      whole,
      words
    );
    if (!layers.length) return;
    const every = make("input", { type: "checkbox" });
    every.checked = this.every;
    every.addEventListener("change", () => {
      this.every = every.checked;
      this.fill(account, layers);
    });
    this.fill(account, layers);
    this.element.append(
      make("h4", {}, "Layer by layer"),
      make(
        "p",
        { class: "soft" },
        "From the answer (top) down to the picture (bottom). Each bar is what arrived at a layer: red went on, grey stayed with biases. Choose a layer below the answer to see its relevance."
      ),
      make("label", { class: "every" }, every, " also steps that only hand on"),
      make("div", { class: "scroll", tabindex: "-1" }, this.list),
      this.layer
    );
  }
  fill(account, layers) {
    const answer = layers[0];
    const rows = layers.filter((layer) => this.every || layer === answer || !QUIET.has(layer.rule) || layer.bias > 0);
    this.list.replaceChildren(
      ...rows.map((layer) => {
        const bar = make("span", { class: "bar", "aria-hidden": "true" });
        for (const [name2, part] of [
          ["input", layer.onward],
          ["bias", layer.bias],
          ["dropped", layer.dropped]
        ]) {
          const piece = make("span", { class: name2 });
          piece.style.width = `${Math.max(0, Math.min(100, account.score > 0 ? 100 * part / account.score : 0))}%`;
          bar.append(piece);
        }
        const name = layer.module || layer.node;
        const words = [
          make("span", { class: "name" }, name, make("small", {}, ` ${layer.op}, ${layer.rule}`)),
          bar,
          make("span", { class: "number" }, percent(layer.arrived, account.score)),
          make("span", { class: "visually-hidden" }, ` of the score arrived; biases took ${percent(layer.bias, account.score)}`)
        ];
        if (layer === answer) return make("li", {}, make("div", { class: "row" }, ...words));
        const button = make(
          "button",
          { type: "button", class: "row", "aria-pressed": String(layer.node === this.chosen), "data-node": layer.node },
          ...words
        );
        button.addEventListener("click", () => {
          this.chosen = layer.node;
          for (const other of this.list.querySelectorAll("button")) {
            other.setAttribute("aria-pressed", String(other === button));
          }
          this.layer.replaceChildren(make("p", { class: "soft" }, "…"));
          this.pick(layer.node);
        });
        return make("li", {}, button);
      })
    );
  }
  showLayer(answer, score) {
    const canvas = make("canvas", { role: "img", class: answer.heat.height === 1 ? "strip" : "" });
    const size = answer.shape.join(" × ");
    const flat = answer.heat.height === 1 ? "one stripe a neuron" : "summed over channels";
    const words = `Relevance at ${answer.node}: ${size} neurons, ${flat}; together ${shown(answer.total)}, ${percent(answer.total, score)} of the score.`;
    canvas.setAttribute("aria-label", words);
    paintHeat(canvas, answer.heat);
    this.layer.replaceChildren(make("figure", {}, canvas, make("figcaption", {}, words)));
  }
  fail(words) {
    this.layer.replaceChildren(make("p", { class: "error" }, words));
  }
};

// src/view.ts
var View = class {
  element = make("div", { class: "view" });
  canvases = [];
  marks = [];
  readout;
  slider;
  heat = null;
  seen = null;
  score = 0;
  at = null;
  scale = 1;
  constructor() {
    const row = make("div", { class: "pictures" });
    const hint = newId("hint");
    for (const [name, words] of [
      ["input", "What the network saw"],
      ["heatmap", "Relevance of each pixel"],
      ["overlay", "Both"]
    ]) {
      const canvas = make("canvas", { class: name, role: "img", tabindex: name === "heatmap" ? "0" : "-1" });
      if (name === "heatmap") canvas.setAttribute("aria-describedby", hint);
      const mark = make("span", { class: "mark", hidden: true, "aria-hidden": "true" });
      this.canvases.push(canvas);
      this.marks.push(mark);
      row.append(make("figure", {}, make("div", { class: "frame" }, canvas, mark), make("figcaption", {}, words)));
      canvas.addEventListener("pointermove", (event) => this.point(canvas, event));
      canvas.addEventListener("pointerdown", (event) => this.point(canvas, event));
      canvas.addEventListener("pointerleave", () => this.read(null));
      canvas.addEventListener("keydown", (event) => this.key(event));
    }
    this.slider = make("input", { type: "range", min: "0", max: "100", value: "85", class: "opacity" });
    this.slider.addEventListener("input", () => this.paintOverlay());
    this.readout = make("output", { class: "readout", "aria-live": "polite" });
    this.element.append(
      row,
      make(
        "div",
        { class: "legend-row" },
        make("div", { class: "legend", role: "img", "aria-label": "Colours: blue against, white nothing, red for it" }),
        make("div", { class: "ends", "aria-hidden": "true" }, make("span", {}, "against"), make("span", {}, "0"), make("span", {}, "for"))
      ),
      make("label", { class: "slider" }, "Heatmap over picture ", this.slider),
      this.readout,
      make("p", { id: hint, class: "visually-hidden" }, "Move with the arrow keys to read the relevance of single pixels; with Shift by ten.")
    );
    this.read(null);
  }
  show(seen, heat, score, what, scale = heat.scale) {
    this.heat = heat;
    this.seen = seen;
    this.score = score;
    this.scale = scale;
    const [input, heatmap, overlay] = this.canvases;
    input.width = seen.width;
    input.height = seen.height;
    context(input).putImageData(seen, 0, 0);
    paintHeat(heatmap, heat, scale);
    this.paintOverlay();
    input.setAttribute("aria-label", "The picture as the network saw it");
    heatmap.setAttribute("aria-label", `Heatmap for ${what}. ${where(heat)}`);
    overlay.setAttribute("aria-label", `Heatmap for ${what} over the picture in grey`);
    this.read(this.at);
  }
  paintOverlay() {
    if (this.seen && this.heat) {
      paintOverlay(this.canvases[2], this.seen, this.heat, Number(this.slider.value) / 100, this.scale);
    }
  }
  point(canvas, event) {
    if (!this.heat) return;
    const box = canvas.getBoundingClientRect();
    const x = Math.floor((event.clientX - box.left) / box.width * this.heat.width);
    const y = Math.floor((event.clientY - box.top) / box.height * this.heat.height);
    this.read([x, y]);
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
    if (!move || !this.heat) return;
    const [x, y] = this.at ?? [this.heat.width >> 1, this.heat.height >> 1];
    this.read([x + move[0], y + move[1]]);
    event.preventDefault();
  }
  read(at) {
    const heat = this.heat;
    if (!at || !heat) {
      this.at = null;
      this.readout.textContent = "Point at a pixel to read its relevance.";
      for (const mark of this.marks) mark.hidden = true;
      return;
    }
    const x = Math.max(0, Math.min(heat.width - 1, at[0]));
    const y = Math.max(0, Math.min(heat.height - 1, at[1]));
    this.at = [x, y];
    const value = heat.values[y * heat.width + x];
    const share = this.score > 0 ? `, ${percent(value, this.score)} of the score` : "";
    this.readout.textContent = `Column ${x}, row ${y}: relevance ${shown(value)}${share}`;
    for (const mark of this.marks) {
      mark.hidden = false;
      mark.style.left = `${100 * (x + 0.5) / heat.width}%`;
      mark.style.top = `${100 * (y + 0.5) / heat.height}%`;
    }
  }
};
function where(heat) {
  const rows = ["top", "middle", "bottom"];
  const columns = ["left", "centre", "right"];
  const sums = new Array(9).fill(0);
  let total = 0;
  heat.values.forEach((value, k) => {
    const row = Math.floor(3 * Math.floor(k / heat.width) / heat.height);
    const column = Math.floor(3 * (k % heat.width) / heat.width);
    sums[3 * row + column] += Math.abs(value);
    total += Math.abs(value);
  });
  if (!(total > 0)) return "It is empty.";
  const best = sums.map((sum, k) => ({ sum, name: `${rows[Math.floor(k / 3)]} ${columns[k % 3]}` }));
  best.sort((a, b) => b.sum - a.sum);
  const words = best.slice(0, 3).map(({ sum, name }) => `${name} ${Math.round(100 * sum / total)} %`);
  return `Most of it: ${words.join(", ")}.`;
}

// src/panel.ts
var METHODS = [
  ["deep-taylor", "Deep Taylor decomposition", "splits the score, layer by layer, down to the pixels"],
  ["sensitivity", "Sensitivity", "where a small change would matter most: the squared gradient"],
  ["taylor", "Taylor at the nearest root", "compares with the nearest picture that the network does not care for; takes some seconds"]
];
var Panel = class {
  constructor(label, rules, events) {
    this.events = events;
    this.fillForm(rules);
    this.result.append(this.warning, this.score, this.notes, this.view.element, this.ledger.element, this.more);
    this.heading.textContent = label;
    this.element = make("article", { class: "panel", "aria-label": label }, this.heading, this.form, this.busy, this.result);
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("change", () => {
      this.adapt();
      void this.run();
    });
    this.adapt();
  }
  events;
  element;
  answer = null;
  seen = null;
  subject = null;
  running = null;
  form = make("form", { class: "settings" });
  result = make("div", { class: "result", hidden: true });
  busy = make("p", { class: "busy", role: "status" });
  warning = make("div", { class: "warning", role: "alert", hidden: true });
  heading = make("h3");
  score = make("p", { class: "score", role: "status" });
  notes = make("ul", { class: "notes" });
  view = new View();
  ledger = new Ledger((node) => void this.showLayer(node));
  more = make("div", { class: "more" });
  set(name, value) {
    const field2 = this.form.elements.namedItem(name);
    if (field2 instanceof RadioNodeList || field2 instanceof HTMLSelectElement || field2 instanceof HTMLInputElement) {
      field2.value = value;
    }
    this.adapt();
  }
  get(name) {
    return String(new FormData(this.form).get(name) ?? "");
  }
  // Forget what is shown: it belongs to another picture or network.
  clear() {
    this.running?.abort();
    this.answer = null;
    this.subject = null;
    this.result.hidden = true;
    this.busy.textContent = "";
  }
  async explain(subject) {
    this.subject = subject;
    await this.run();
  }
  repaint(scale) {
    if (this.answer && this.seen) {
      this.view.show(this.seen, this.answer.heat, this.answer.account.score, this.what(), scale);
    }
  }
  what() {
    const rather = this.get("against");
    const named = this.answer?.target_name ? `“${this.answer.target_name}”` : "the network’s answer";
    return rather ? `${named} rather than “${rather.replace(/^\d+: /, "")}”` : named;
  }
  options() {
    const subject = this.subject;
    const given = Object.fromEntries(new FormData(this.form));
    if (given["method"] !== "deep-taylor") {
      for (const name of ["bias", "max_pool", "first", "above", "rules"]) delete given[name];
    }
    if (given["method"] !== "taylor") delete given["level"];
    given["against"] = /^\d+/.exec(given["against"] ?? "")?.[0] ?? "";
    return { ...given, model: subject.model, target: subject.target, file: subject.file };
  }
  async run() {
    if (!this.subject) return;
    this.running?.abort();
    const running = this.running = new AbortController();
    const began = performance.now();
    const tick = () => {
      const seconds = Math.round((performance.now() - began) / 1e3);
      this.busy.textContent = seconds < 2 ? "Explaining …" : `Explaining … ${seconds} s (new settings take a few seconds the first time)`;
    };
    tick();
    this.busy.className = "busy";
    this.element.setAttribute("aria-busy", "true");
    const clock = setInterval(tick, 1e3);
    try {
      const answer = await explain(this.options(), this.subject.picture, running.signal);
      this.seen = await decoded2(answer.seen);
      this.answer = answer;
      this.show();
      this.busy.textContent = "";
      this.events.done(this);
    } catch (error) {
      if (running.signal.aborted) return;
      if (error instanceof ServerError && error.ofPicture) {
        this.events.refused(error.message);
        return;
      }
      this.busy.textContent = error instanceof Error ? error.message : String(error);
      this.busy.className = "busy error";
      this.result.hidden = true;
      this.answer = null;
      this.events.done(this);
    } finally {
      clearInterval(clock);
      if (this.running === running) this.element.removeAttribute("aria-busy");
    }
  }
  show() {
    const answer = this.answer;
    this.result.hidden = false;
    this.warning.hidden = !answer.warning;
    this.warning.replaceChildren(...answer.warning ? this.warn(answer) : []);
    const positive = answer.score > 0;
    this.score.textContent = positive ? `Why ${this.what()}? Its score is ${shown(answer.score)}; the heatmap says which pixels hold it.` : `The score of ${this.what()} is ${shown(answer.score)}: there is nothing to hand out.`;
    this.notes.replaceChildren(...answer.notes.map((note) => make("li", {}, note)));
    this.repaint();
    this.ledger.show(answer.account, answer.layers);
    this.fillMore(answer);
  }
  warn(answer) {
    const words = [make("p", {}, make("strong", {}, answer.warning))];
    const { score, bias, input, returned } = answer.account;
    if (answer.method === "deep-taylor" && score > 0 && bias + returned > input - returned) {
      words.push(
        make("p", {}, "Biases are numbers that the network adds whatever it sees. Each may keep its share, give it back to the inputs of its neuron, or hand it back at the end. Look at more than one before you trust a map.")
      );
      if (this.events.compare) {
        words.push(make("button", { type: "button", click: () => this.events.compare?.() }, "Compare both ways"));
      }
    }
    return words;
  }
  async showLayer(node) {
    if (!this.subject || !this.answer) return;
    const answer = this.answer;
    try {
      const layer = await explainLayer(node, this.options(), this.subject.picture);
      if (this.answer === answer) this.ledger.showLayer(layer, answer.account.score);
    } catch (error) {
      if (this.answer === answer) this.ledger.fail(error instanceof Error ? error.message : String(error));
    }
  }
  // --- settings ------------------------------------------------------------------------------------------------------
  fillForm(rules) {
    const known = newId("rules");
    const list = make("datalist", { id: known }, ...rules.map((rule2) => make("option", { value: EXAMPLES[rule2] ?? rule2 })));
    const method = make("select", { name: "method" }, ...METHODS.map(([value, words]) => make("option", { value }, words)));
    method.addEventListener("change", () => this.adapt());
    const expert = make(
      "details",
      { class: "deep" },
      make("summary", {}, "More settings"),
      field("First layer’s rule", rule("first", known), "empty: what follows from the range of the pixels (z^B)"),
      field("Rule of the other layers", rule("above", known), "empty: what follows from each layer’s inputs (z⁺)"),
      field(
        "Rules for single layers",
        make("input", { name: "rules", maxlength: "2000", placeholder: "conv10=eps:0.25; fire*=z+", autocomplete: "off", spellcheck: "false" }),
        "layer=rule, by semicolons; * stands for anything"
      ),
      field(
        "Max pooling",
        make("select", { name: "max_pool" }, make("option", { value: "proportional" }, "in proportion to activations"), make("option", { value: "winner" }, "the winner takes all"))
      ),
      list
    );
    const bias = make(
      "fieldset",
      { class: "deep" },
      make("legend", {}, "Biases of the network"),
      radio("bias", "returned", "hand their share back at the end", true),
      radio("bias", "neuron", "keep their share, as in the paper", false),
      radio("bias", "spread", "give it back to the inputs of each neuron", false)
    );
    this.form.append(
      field("Method", method, " "),
      bias,
      field("Rather than class", make("input", { name: "against", list: "class-names", placeholder: "none", autocomplete: "off" }), "explain the difference to another class"),
      field("Level of the root", make("input", { name: "level", type: "number", min: "0", max: "0.99", step: "0.01", value: "0.1" }), "where the score has fallen to this part"),
      expert
    );
    this.form.querySelector("[name=level]").closest("label").classList.add("taylor");
    this.form.querySelector("[name=against]").closest("label").classList.add("classes");
  }
  // Only what the chosen method knows is shown.
  adapt() {
    const method = this.get("method");
    this.form.querySelector("small").textContent = METHODS.find(([value]) => value === method)[2];
    for (const part of this.form.querySelectorAll(".deep")) part.hidden = method !== "deep-taylor";
    for (const part of this.form.querySelectorAll(".taylor")) part.hidden = method !== "taylor";
  }
  withClasses(has) {
    for (const part of this.form.querySelectorAll(".classes")) part.hidden = !has;
    if (!has) this.set("against", "");
  }
  // --- downloads -----------------------------------------------------------------------------------------------------
  fillMore(answer) {
    const stem = `${this.subject.file.replace(/\.[^.]*$/, "") || "picture"}_${answer.method}`;
    const options = this.options();
    const { picture } = this.subject;
    const file = (words, name, get) => {
      const button = make("button", { type: "button" }, words);
      button.addEventListener("click", () => {
        button.disabled = true;
        get().then((blob) => save(blob, name)).catch((error) => {
          this.busy.textContent = error instanceof Error ? error.message : String(error);
          this.busy.className = "busy error";
        }).finally(() => button.disabled = false);
      });
      return button;
    };
    const seen = new Blob([bytes(answer.seen)], { type: "image/png" });
    const text = (words) => Promise.resolve(new Blob([words], { type: "text/plain" }));
    this.more.replaceChildren(
      make("h4", {}, "Take it with you"),
      make(
        "div",
        { class: "buttons" },
        file("Heatmap (PNG)", `${stem}.png`, () => heatmapPng(options, picture)),
        file("Numbers (npz)", `${stem}.npz`, () => arrays(options, picture)),
        file("What the network saw (PNG)", this.subject.file === "digits.png" ? "digits.png" : `${stem}_seen.png`, () => Promise.resolve(seen)),
        file("Python", `${stem}.py`, () => text(answer.snippet))
      ),
      code("The same in Python", answer.snippet),
      code("The same on the command line", answer.command),
      code("Is it consistent?", answer.check),
      ...answer.plan ? [code("The plan: which rule where, and why", answer.plan)] : []
    );
  }
};
var EXAMPLES = { eps: "eps:0.25", gamma: "gamma:0.25", ab: "ab:2,1" };
function rule(name, list) {
  return make("input", { name, list, maxlength: "200", placeholder: "automatic", autocomplete: "off", spellcheck: "false" });
}
function field(words, input, hint = "") {
  const label = make("label", { class: "field" }, make("span", {}, words), input);
  if (hint) label.append(make("small", {}, hint));
  return label;
}
function radio(name, value, words, checked) {
  const input = make("input", { type: "radio", name, value });
  input.checked = input.defaultChecked = checked;
  return make("label", {}, input, ` ${words}`);
}
function code(words, text) {
  const copy = make("button", { type: "button", class: "copy" }, "Copy");
  copy.addEventListener("click", () => {
    void navigator.clipboard.writeText(text).then(
      () => copy.textContent = "Copied",
      () => copy.textContent = "Select it and copy"
    );
  });
  return make("details", {}, make("summary", {}, words), copy, make("pre", { tabindex: "0" }, text));
}
function save(blob, name) {
  const address = URL.createObjectURL(blob);
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1e4);
}
async function decoded2(png) {
  const bitmap = await createImageBitmap(new Blob([bytes(png)], { type: "image/png" }));
  const canvas = make("canvas");
  canvas.width = bitmap.width;
  canvas.height = bitmap.height;
  context(canvas).drawImage(bitmap, 0, 0);
  return context(canvas).getImageData(0, 0, bitmap.width, bitmap.height);
}

// src/main.ts
var TYPES = "image/jpeg,image/png,image/webp,image/gif,image/bmp,image/tiff";
var Page = class {
  constructor(offer) {
    this.offer = offer;
    for (const kind of ["photograph", "digits"]) {
      const group = make("optgroup", { label: kind === "digits" ? "Drawn digits" : "Photographs" });
      for (const model of offer.models.filter((m) => m.kind === kind)) {
        group.append(make("option", { value: model.name }, model.title));
      }
      if (group.children.length) this.select.append(group);
    }
    this.select.value = offer.chosen;
    this.select.addEventListener("change", () => void this.choose());
    this.panels.push(this.panel("Explanation"));
    byId("panels").append(this.panels[0].element);
    this.wirePhotograph();
    wireWriting(this.pad, () => {
      this.picture = null;
      for (const panel of this.panels) panel.clear();
      byId("result").hidden = true;
    });
    this.compare.addEventListener("change", () => this.second(this.compare.checked));
    this.same.addEventListener("change", () => this.repaint());
    byId("other-class").addEventListener("submit", (event) => this.otherClass(event));
    void this.choose();
  }
  offer;
  model = null;
  picture = null;
  file = "";
  target = "";
  guessed = null;
  // the picture that the guesses belong to
  names = [];
  panels = [];
  select = byId("model");
  status = byId("model-status");
  progress = byId("model-progress");
  problem = byId("problem");
  compare = byId("compare");
  same = byId("same-scale");
  pad = new Pad(() => this.drawn());
  panel(label) {
    const compare = label === "Explanation" ? () => this.compareBiases() : null;
    return new Panel(label, this.offer.rules, { done: (panel) => this.done(panel), refused: (words) => this.refuse(words), compare });
  }
  // --- the network ---------------------------------------------------------------------------------------------------
  async choose() {
    const name = this.select.value;
    this.model = null;
    this.names = [];
    this.target = "";
    for (const panel of this.panels) panel.clear();
    byId("result").hidden = true;
    this.guessed = null;
    this.say("");
    this.sayOfPicture("");
    const known = this.offer.models.find((m) => m.name === name);
    byId("about").textContent = known.about;
    byId("photograph").hidden = known.kind !== "photograph";
    byId("digits").hidden = known.kind !== "digits";
    const kept = this.picture && this.file === "digits.png" === (known.kind === "digits");
    if (!kept) this.picture = null;
    if (known.kind === "digits" && !this.pad.empty) {
      this.picture = this.pad.picture();
      this.file = "digits.png";
    }
    byId("preview").hidden = known.kind === "digits" || !this.picture;
    byId("file-name").textContent = known.kind === "digits" || !this.picture ? "" : this.file;
    try {
      let model = await loadModel(name);
      while (model.state === "loading" && this.select.value === name) {
        this.progress.hidden = false;
        this.status.textContent = `Loading: ${model.message}, ${Math.round(model.seconds)} s`;
        await new Promise((done) => setTimeout(done, 400));
        model = await getModel(name);
      }
      if (this.select.value !== name) return;
      this.progress.hidden = true;
      this.status.textContent = model.state === "ready" ? "Ready." : "";
      if (model.state !== "ready") {
        this.say(model.message);
        return;
      }
      this.model = model;
      if (model.kind === "photograph") this.names = await getClasses(name);
      const list = byId("class-names");
      list.replaceChildren(...this.names.map((words, k) => make("option", { value: `${k}: ${words}` })));
      this.explain();
    } catch (error) {
      this.progress.hidden = true;
      this.status.textContent = "";
      this.say(error instanceof Error ? error.message : String(error));
    }
  }
  // --- the picture ---------------------------------------------------------------------------------------------------
  wirePhotograph() {
    const input = byId("file");
    const drop = byId("drop");
    input.accept = TYPES;
    input.addEventListener("change", () => {
      if (input.files?.[0]) this.take(input.files[0]);
      input.value = "";
    });
    byId("pick").addEventListener("click", () => input.click());
    for (const kind of ["dragenter", "dragover"]) {
      document.addEventListener(kind, (event) => {
        event.preventDefault();
        drop.classList.add("over");
      });
    }
    for (const kind of ["dragleave", "drop"]) {
      document.addEventListener(kind, (event) => {
        event.preventDefault();
        drop.classList.remove("over");
      });
    }
    document.addEventListener("drop", (event) => {
      const file = event.dataTransfer?.files[0];
      if (file && !byId("photograph").hidden) this.take(file);
    });
    document.addEventListener("paste", (event) => {
      const file = event.clipboardData?.files[0];
      if (file && !byId("photograph").hidden) this.take(file);
    });
  }
  take(file) {
    const most = this.offer.limits.bytes;
    if (file.size > most) {
      this.refuse(`${file.name} is too large: ${(file.size / 2 ** 20).toFixed(1)} MiB; at most ${most / 2 ** 20} MiB are taken.`);
      return;
    }
    this.picture = file;
    this.file = file.name.slice(0, 200);
    this.target = "";
    byId("file-name").textContent = file.name;
    const preview = byId("preview");
    URL.revokeObjectURL(preview.src);
    preview.src = URL.createObjectURL(file);
    preview.alt = `Your picture, ${file.name}`;
    preview.hidden = false;
    this.say("");
    this.sayOfPicture("");
    this.explain();
  }
  // Said where the picture was chosen; what belongs to the one before must not be taken for this one's.
  refuse(words) {
    this.picture = this.guessed = null;
    for (const panel of this.panels) panel.clear();
    byId("result").hidden = true;
    byId("preview").hidden = true;
    byId("file-name").textContent = "";
    this.sayOfPicture(words);
    byId("picture-problem").scrollIntoView({ block: "nearest" });
  }
  drawn() {
    this.picture = this.pad.picture();
    this.file = "digits.png";
    this.target = "";
    this.explain();
  }
  // --- the explanations ----------------------------------------------------------------------------------------------
  explain(only) {
    if (!this.model || !this.picture) return;
    byId("result").hidden = false;
    byId("answer").hidden = this.model.kind === "digits" || !this.guessed;
    for (const panel of only ? [only] : this.panels) {
      panel.withClasses(this.model.kind !== "digits");
      void panel.explain({ model: this.model.name, picture: this.picture, file: this.file, target: this.target });
    }
  }
  done(panel) {
    this.repaint();
    if (panel !== this.panels[0]) return;
    if (panel.answer) this.guessed = this.picture;
    byId("answer").hidden = this.model?.kind === "digits" || this.guessed !== this.picture;
    if (!panel.answer) return;
    const { classes, target } = panel.answer;
    const focused = [...byId("classes").querySelectorAll("button")].findIndex((b) => b === document.activeElement);
    byId("classes").replaceChildren(
      ...classes.map((found) => {
        const chosen = found.index === target;
        const meter = make("meter", { min: "0", max: "1", "aria-hidden": "true" });
        meter.value = found.probability;
        const button = make(
          "button",
          { type: "button", "aria-pressed": String(chosen) },
          make("span", {}, found.name),
          meter,
          make("span", { class: "number" }, `${(100 * found.probability).toFixed(1)} %`)
        );
        button.addEventListener("click", () => this.ask(found.index));
        return make("li", {}, button);
      })
    );
    byId("classes").querySelectorAll("button")[focused]?.focus();
    const outside = target !== null && classes.every((found) => found.index !== target);
    byId("asked").textContent = outside ? `Explained: ${panel.answer.target_name}, which is not among the five.` : "";
  }
  ask(index) {
    this.target = String(index);
    this.explain();
  }
  otherClass(event) {
    event.preventDefault();
    const words = byId("class-name").value.trim();
    const number = /^\d+/.exec(words)?.[0];
    const index = number !== void 0 ? Number(number) : this.names.findIndex((name) => name.toLowerCase() === words.toLowerCase());
    if (index < 0 || index >= this.names.length) {
      byId("asked").textContent = `No class is called “${words}”. Choose one from the list, or give a number below ${this.names.length}.`;
      return;
    }
    this.ask(index);
  }
  compareBiases() {
    this.compare.checked = true;
    this.second(true);
  }
  second(wanted) {
    byId("same-label").hidden = !wanted;
    byId("panels").classList.toggle("two", wanted);
    if (!wanted) {
      const removed = this.panels.splice(1, 1)[0];
      removed?.clear();
      removed?.element.remove();
      this.repaint();
      return;
    }
    if (this.panels.length > 1) return;
    const panel = this.panel("Second explanation");
    panel.set("bias", this.panels[0].get("bias") === "spread" ? "returned" : "spread");
    this.panels.push(panel);
    byId("panels").append(panel.element);
    this.explain(panel);
  }
  // With one colour scale for both, equal colours are equal relevances.
  repaint() {
    const scales = this.panels.flatMap((panel) => panel.answer ? [panel.answer.heat.scale] : []);
    const shared = this.same.checked && this.panels.length > 1 && scales.length ? Math.max(...scales) : void 0;
    for (const panel of this.panels) panel.repaint(shared);
  }
  say(words) {
    this.problem.textContent = words;
    this.problem.hidden = !words;
  }
  sayOfPicture(words) {
    byId("picture-problem").textContent = words;
    byId("picture-problem").hidden = !words;
  }
};
async function start() {
  takeToken();
  try {
    new Page(await getModels());
    document.body.dataset["ready"] = "yes";
  } catch (error) {
    const problem = byId("problem");
    problem.textContent = error instanceof Error ? error.message : String(error);
    problem.hidden = false;
    document.querySelector(".choose").hidden = true;
  }
}
void start();
