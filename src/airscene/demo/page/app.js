// The demo's page: a picture to draw on (left), and the scene found in it, which can be edited (right).
//
// Coordinates are in pixels of the picture, as in airscene's Scene: x to the right, y down. While the
// pen moves, at most one request is under way; the next one sends the newest picture.
//
// A picture that is read whole (at the scale of training) may have hundreds of objects. It gets a
// wide stage with outlines instead of windows, and its list of objects scrolls.
"use strict";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const PEN = 2.5; // width in pixels of the model's image, similar to digits of the training data
const STAMP = 6.5; // radius of a sprite, as in airscene/data/sprites.py
const STAMP_COLOURS = ["#f00", "#0f0", "#00f"];
const COLOURS = 6; // number of window colours in style.css
const SLIDERS = 8; // number of sliders shown before "More" is clicked
const MOST_BYTES = 10e6;
const MOST_DRAWN = 1.99e6; // pixels of a scene that the server renders
const BARS = [12, 9]; // with more counts than the first number, only the likely ones are shown
const UNEXPLAINED = 0.4; // share of the picture's squared intensity; above it, the page shows a note

const WORDS = {
  digits: { title: "Draw a few digits", hint: "Draw here, about this large" },
  grey: { title: "Draw a few objects", hint: "Draw here" },
  colour: { title: "Place a few sprites", hint: "Place a few stamps here" },
  whole: { title: "Find the objects in a picture", hint: "Drop a picture here, or draw" },
  things: { title: "Put something on the table", hint: "Open a picture, or make a random scene" },
};

const state = {
  models: [],
  model: null, // the entry of /models for the selected model
  strokes: [], // the drawing: {points} or {stamp, x, y}
  file: null, // instead of strokes, a picture: {blob, type, name, url, width, height, tile}
  whole: false, // whether the picture was read whole
  listed: [], // then, the objects found in it
  scene: null, // {height, width, tile, objects: [{where, what, number, patch, bitmap}]}
  found: null, // the scene before it was edited
  selected: -1,
  allSliders: false,
  layout: null, // 3D models: the scene that was found or sampled
  truth: null, // 3D models: the true random scene
};
const latencies = [];
window.airscene = {
  latencies,
  state,
  get idle() {
    return !look.busy && latest === null;
  },
};

// --- Requests to the server ------------------------------------------------------------------

async function ask(path, query = {}, body = null, type = "application/json") {
  const words = new URLSearchParams({ model: state.model?.name ?? "", ...query });
  const options = body === null ? {} : { method: "POST", body, headers: { "Content-Type": type } };
  let response;
  try {
    response = await fetch(`${path}?${words}`, options);
  } catch {
    throw new Error("The server does not answer. Is airscene demo still running?");
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error ?? `The server returned status ${response.status}.`);
  return answer;
}

const askToRender = (scene) => ask("render", {}, JSON.stringify(scene));

/** Returns a function that runs `work` on the newest value, one call at a time. */
function newest(work, merge = (_, value) => value) {
  let waiting = null;
  const run = async (value) => {
    waiting = waiting ? merge(waiting, value) : value;
    if (run.busy) return;
    run.busy = true;
    while (waiting) {
      const job = waiting;
      waiting = null;
      await work(job).catch((error) => say(error.message));
    }
    run.busy = false;
  };
  return run;
}

let latest = null; // the newest answer, until its scene is shown

/** Infers the scene of the picture. `since`: time of the oldest pointer event without an answer. */
const look = newest(
  async ({ since, file }) => {
    const { model } = state;
    // Pictures drawn by the page or rendered by the model are always light on black.
    const seen = Number(!file || file.seen === true);
    const flags = { patches: 1, seen, ...(file && { preview: 1, invert: Number($("invert").checked) }) };
    const whole = readsWhole(file);
    if (model.kind === "2d") Object.assign(flags, { whole: Number(whole), outlines: Number(whole) });
    if (file?.tile) flags.tile = file.tile;
    const [blob, type] = file ? [file.blob, file.type] : [drawnBytes(), "application/x-npy"];
    const started = performance.now();
    const slow = whole && setTimeout(() => say(`Reading ${file.name || "the picture"} …`, true), 300);
    let answer;
    try {
      answer = await ask("infer", flags, blob, type);
    } catch (error) {
      if (file) forget(file);
      throw new Error(file?.name ? `${file.name}: ${error.message}` : error.message);
    } finally {
      clearTimeout(slow);
    }
    if (state.model !== model || (state.file ?? null) !== (file ?? null)) return; // outdated
    quiet();
    setWhole(whole && answer);
    if (file) await show(file, answer);
    if (model.kind === "3d") return showLayout(answer);
    showFound(answer);
    latest = answer;
    painted().then(() => {
      if (whole) showTime(answer, performance.now() - started);
      if (since) measured(performance.now() - since);
      if (latest === answer) attempt(() => showScene(answer, whole ? file.tile ?? model.tile : 0).then(() => (latest = null))); // after the windows
    });
  },
  (waiting, value) => ({ ...value, since: Math.min(waiting.since ?? Infinity, value.since ?? Infinity) }),
);

const painted = () =>
  new Promise((resolve) => {
    requestAnimationFrame(() => {
      const channel = new MessageChannel(); // its message arrives after the frame is painted
      channel.port1.onmessage = resolve;
      channel.port2.postMessage(0);
    });
  });

function measured(milliseconds) {
  if (!Number.isFinite(milliseconds)) return;
  latencies.push(milliseconds);
  const last = latencies.slice(-20).sort((a, b) => a - b);
  $("latency").textContent = `${Math.round(last[last.length >> 1])} ms from pen stroke to result`;
}

function showTime({ width, height }, milliseconds) {
  $("latency").textContent = `${width} × ${height} pixels, read in ${(milliseconds / 1000).toFixed(1)} s`;
}

// --- Messages --------------------------------------------------------------------------------

function say(text, plain = false) {
  $("message").textContent = text;
  $("message").classList.toggle("plain", plain);
  $("message").hidden = false;
}

function quiet() {
  $("message").hidden = true;
}

// --- The picture -----------------------------------------------------------------------------

const small = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const picture = $("picture").querySelector("canvas");

/** Returns scale, left and top of an image on a canvas: as large as possible, centred. */
function fit(canvas, width, height) {
  const scale = Math.min(canvas.width / width, canvas.height / height);
  return [scale, (canvas.width - scale * width) / 2, (canvas.height - scale * height) / 2];
}

function place(context, width, height) {
  const { canvas } = context;
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.globalCompositeOperation = "source-over";
  context.fillStyle = "#000";
  context.fillRect(0, 0, canvas.width, canvas.height);
  const [scale, left, top] = fit(canvas, width, height);
  context.setTransform(scale, 0, 0, scale, left, top);
}

function drawStrokes(context) {
  place(context, state.model.width, state.model.height);
  context.globalCompositeOperation = "lighter";
  Object.assign(context, { strokeStyle: "#fff", lineWidth: PEN, lineCap: "round", lineJoin: "round" });
  for (const stroke of state.strokes) {
    context.beginPath();
    if (stroke.points) {
      tracePen(context, stroke.points);
      context.stroke();
    } else {
      context.fillStyle = STAMP_COLOURS[stroke.stamp];
      traceStamp(context, stroke);
      context.fill();
    }
  }
}

/** Traces a smooth line: curves between midpoints, with the points as control points. */
function tracePen(context, points) {
  context.moveTo(...points[0]);
  for (let i = 1; i < points.length - 1; i++) {
    const [x, y] = points[i];
    const [nextX, nextY] = points[i + 1];
    context.quadraticCurveTo(x, y, (x + nextX) / 2, (y + nextY) / 2);
  }
  context.lineTo(...points.at(-1));
}

function traceStamp(context, { stamp, x, y }) {
  if (stamp === 0) context.arc(x, y, STAMP, 0, 2 * Math.PI);
  if (stamp === 1) context.rect(x - STAMP, y - STAMP, 2 * STAMP, 2 * STAMP);
  if (stamp === 2) {
    context.moveTo(x, y - STAMP);
    for (const [dx, dy] of [[1, 0], [0, 1], [-1, 0]]) context.lineTo(x + STAMP * dx, y + STAMP * dy);
  }
}

function drawPicture() {
  const context = picture.getContext("2d");
  const { file, model } = state;
  if (file?.image) {
    place(context, file.width, file.height);
    context.imageSmoothingEnabled = file.image.naturalWidth > 100; // show the pixels of small images
    context.drawImage(file.image, 0, 0, file.width, file.height);
  } else {
    drawStrokes(context);
  }
  const { width, height } = file?.image ? file : model;
  $("picture").querySelector("svg").setAttribute("viewBox", `0 0 ${width} ${height}`);
  const empty = !state.strokes.length && !file;
  $("hint").lastElementChild.textContent = wordsOf(model).hint;
  $("hint").hidden = !empty;
  $("invert").parentElement.hidden = !file?.image || model.kind === "3d";
  $("whole").parentElement.hidden = $("invert").parentElement.hidden || !isReduced(file);
}

/** Whether a picture is much larger than the model's image, which the model usually takes. */
const isReduced = ({ width, height, seen }) =>
  !state.model.whole && !seen && Math.max(width / state.model.width, height / state.model.height) > 1.5;

/** Returns the drawing as an NPY file at the model's size: faster than encoding a PNG. */
function drawnBytes() {
  const { width, height, channels } = state.model;
  small.canvas.width = width;
  small.canvas.height = height;
  drawStrokes(small);
  const pixels = small.getImageData(0, 0, width, height).data;
  const shape = channels === 3 ? `(${height}, ${width}, 3)` : `(${height}, ${width})`;
  const words = `{'descr': '|u1', 'fortran_order': False, 'shape': ${shape}, }`;
  const head = `\x93NUMPY\x01\x00\x76\x00${words.padEnd(117)}\n`; // 128 bytes in total
  const bytes = new Uint8Array(128 + width * height * channels);
  for (let i = 0; i < 128; i++) bytes[i] = head.charCodeAt(i);
  for (let i = 0; i < width * height; i++)
    for (let c = 0; c < channels; c++) bytes[128 + i * channels + c] = pixels[4 * i + c];
  return bytes;
}

function pointAt(event) {
  const { left, top, width, height } = picture.getBoundingClientRect();
  const { model } = state;
  const scale = Math.min(width / model.width, height / model.height);
  return [
    (event.clientX - left - (width - scale * model.width) / 2) / scale,
    (event.clientY - top - (height - scale * model.height) / 2) / scale,
  ];
}

function startToolAt(event) {
  const { model } = state;
  if (model.kind === "3d" || event.button !== 0) return;
  if (state.whole) return select(-1); // a large picture is not lost by a click: "Clear" removes it
  if (state.file) clearPicture();
  const [x, y] = pointAt(event);
  const stamp = Number(document.querySelector("[name=stamp]:checked").value);
  state.strokes.push(model.channels === 3 ? { stamp, x, y } : { points: [[x, y]] });
  picture.setPointerCapture(event.pointerId);
  drewUntil(event);
}

function moveToolTo(event) {
  const stroke = state.strokes.at(-1);
  if (!stroke || !picture.hasPointerCapture(event.pointerId)) return;
  if (stroke.points) {
    const between = event.getCoalescedEvents?.() ?? [];
    for (const moved of between.length ? between : [event]) stroke.points.push(pointAt(moved));
  } else {
    [stroke.x, stroke.y] = pointAt(event);
  }
  drewUntil(event);
}

function drewUntil(event) {
  drawPicture();
  look({ since: event.timeStamp });
}

function clearPicture() {
  if (state.file?.url) URL.revokeObjectURL(state.file.url);
  state.file = null;
  state.truth = null;
  state.strokes = [];
  if (state.whole) $("latency").textContent = "";
  setWhole(null);
  drawPicture();
}

// --- Opened pictures -------------------------------------------------------------------------

function open(blob, name = "", rest = {}) {
  if (blob.size > MOST_BYTES) return say(`${name}: the file is larger than 10 MB.`);
  const type = /^image\/[\w.+-]+$/.test(blob.type) ? blob.type : "application/octet-stream";
  state.truth = null;
  return take({ blob, type, name, ...rest });
}

function take(file) {
  file.before = state.file?.image ? state.file : null;
  state.file = file;
  return look({ file });
}

/** Whether to read a picture at the scale of training. Drawings have the model's size. */
const readsWhole = (file) => Boolean(file) && state.model.kind === "2d" && (file.whole ?? $("whole").checked);

/** Arranges the page for a picture that was read whole, given its size, or for a small one. */
function setWhole(size) {
  const whole = Boolean(size);
  if (whole !== state.whole) {
    for (const svg of [stage, $("picture").querySelector("svg")]) svg.replaceChildren();
    $("objects").replaceChildren();
  }
  if (whole) state.selected = -1; // it belonged to another picture
  state.whole = whole;
  document.body.classList.toggle("is-whole", whole);
  for (const one of [$("picture"), $("scene")]) one.style.aspectRatio = whole ? `${size.width} / ${size.height}` : "";
  hideTip();
  resize();
}

/** Restores the previous picture if this one could not be read. */
function forget(file) {
  if (state.file !== file) return;
  state.file = file.before;
  drawPicture();
}

/** Shows a picture as the server read it, which works even for formats unknown to the browser. */
async function show(file, answer) {
  file.image = await imageOf(answer.image);
  file.width = answer.width ?? file.image.naturalWidth;
  file.height = answer.height ?? file.image.naturalHeight;
  file.before = null;
  state.strokes = [];
  drawPicture();
}

async function imageOf(url) {
  const image = new Image();
  image.src = url;
  await image.decode();
  return image;
}

function bytesOf(dataUrl) {
  return Uint8Array.from(atob(dataUrl.split(",")[1]), (c) => c.charCodeAt(0));
}

const pngOf = (dataUrl) => new Blob([bytesOf(dataUrl)], { type: "image/png" });

// --- What was found --------------------------------------------------------------------------

function showFound(answer) {
  state.listed = answer.objects;
  if (state.whole) drawOutlines($("picture").querySelector("svg"), answer.objects);
  else drawWindows($("picture").querySelector("svg"), answer.objects);
  showPosterior(answer.count_posterior);
  const missing = `${Math.round(100 * answer.residual)}% of the picture is unexplained`;
  showCount(answer.count, answer.residual > UNEXPLAINED ? missing : "");
}

function showCount(count, note = "", edited = false) {
  const word = state.model.kind === "2d" ? "object" : count === 1 ? state.layout.objects[0].kind : "thing";
  const text = `${count} ${word}${count === 1 ? "" : "s"}`;
  if ($("count").textContent !== text) $("count").textContent = text;
  $("note").textContent = note;
  $("posterior").classList.toggle("stale", edited); // it belongs to the picture, not to the edited scene
}

function showPosterior(chances) {
  const list = $("posterior");
  const most = chances.indexOf(Math.max(...chances));
  const [all, some] = BARS;
  const part = chances.length > all;
  const first = part ? Math.min(Math.max(most - (some >> 1), 0), chances.length - some) : 0;
  const shown = part ? chances.slice(first, first + some) : chances;
  list.classList.toggle("part", part);
  fill(list, shown.length, () => {
    const item = document.createElement("li");
    item.append(document.createElement("i"), document.createElement("span"));
    return item;
  });
  const high = part ? Math.max(...shown) : 1; // of many counts, none is nearly certain
  [...list.children].forEach((item, k) => {
    item.firstChild.style.transform = `scaleY(${Math.max(shown[k] / high, 0.02)})`;
    item.lastChild.textContent = first + k;
    item.title = percent(shown[k]);
    item.classList.toggle("most", first + k === most);
  });
  list.setAttribute("aria-label", shown.map((p, k) => `${first + k}: ${percent(p)}`).join(", "));
}

function percent(p) {
  if (p > 0.999 && p < 1) return ">99.9%";
  return `${(100 * p).toFixed(p > 0.995 || p < 0.001 ? 0 : 1)}%`;
}

/** Gives `parent` `count` children. Existing ones are kept, so they can move smoothly. */
function fill(parent, count, make) {
  while (parent.children.length > count) parent.lastChild.remove();
  while (parent.children.length < count) parent.append(make(parent.children.length));
}

function drawWindows(svg, objects, make = makeWindow) {
  fill(svg, objects.length, make);
  const pixel = pixelOf(svg);
  objects.forEach((thing, i) => {
    const [side, x, y] = thing.where;
    const group = svg.children[i];
    const [frame, grip, handle] = group.children;
    colour(group, thing.number ?? i);
    setBox(frame, x - side / 2, y - side / 2, side);
    if (!grip) return;
    setBox(grip, x + side / 2 - 16 * pixel, y + side / 2 - 16 * pixel, 32 * pixel);
    setBox(handle, x + side / 2 - 6 * pixel, y + side / 2 - 6 * pixel, 12 * pixel);
  });
}

/** Draws the outlines of many objects. The pointer over one shows what was found. */
function drawOutlines(svg, objects) {
  fill(svg, objects.length, makeOutline);
  objects.forEach((thing, i) => {
    const [path] = svg.children[i].children;
    path.setAttribute("d", thing.outline.length ? `M${thing.outline.map((p) => p.join()).join(" ")}Z` : "");
    colour(svg.children[i], i);
  });
}

function makeOutline(i) {
  const group = draw(null, "g", { class: "window" }, draw(null, "path", {}));
  group.addEventListener("pointerenter", () => showTip(i));
  group.addEventListener("pointerleave", () => showTip(selectedNumber()));
  group.addEventListener("pointerdown", (event) => event.button === 0 && selectNumber(i));
  return group;
}

/** Selects the object that has a number in the picture, unless it was removed from the scene. */
function selectNumber(number) {
  if (state.scene?.tile) select(state.scene.objects.findIndex((thing) => thing.number === number));
  showTip(number);
}

/** Returns the selected object's number in the picture, if it is in the picture. */
const selectedNumber = () => (state.scene?.tile ? state.scene.objects[state.selected]?.number : undefined);

/** Shows presence and box of an object of the picture, beside its outline. */
function showTip(number) {
  const thing = state.whole && state.listed[number];
  if (!thing) return hideTip();
  const tip = $("tip");
  const { box } = thing;
  const svg = $("picture").querySelector("svg");
  const { width, height } = svg.viewBox.baseVal;
  const shown = svg.getBoundingClientRect();
  const scale = Math.min(shown.width / width, shown.height / height);
  const left = (shown.width - scale * width) / 2 + (scale * (box[0] + box[2])) / 2;
  const [above, below] = [box[1], box[3]].map((y) => (shown.height - scale * height) / 2 + scale * y);
  tip.firstChild.textContent = `Object ${number + 1}, presence ${percent(thing.presence)}`;
  tip.lastChild.textContent = `box ${wordsOfBox(box)}`;
  tip.hidden = false;
  const x = Math.min(Math.max(left - tip.offsetWidth / 2, 4), shown.width - tip.offsetWidth - 4);
  const y = above > tip.offsetHeight + 10 ? above - tip.offsetHeight - 8 : Math.min(below + 8, shown.height - tip.offsetHeight - 4);
  Object.assign(tip.style, { left: `${x}px`, top: `${y}px` });
}

function hideTip() {
  $("tip").hidden = true;
}

/** Returns the box of an object, which moves and grows with its window. */
function boxOf({ where: [side, x, y], shape }) {
  return shape.map((v, i) => (i % 2 ? y : x) + side * v);
}

/** Returns a box relative to the window. */
const shapeOf = (box, [side, x, y]) => box.map((v, i) => (v - (i % 2 ? y : x)) / side);

function wordsOfBox(box) {
  const [x0, y0, x1, y1] = box.map((v) => Math.round(v));
  return `${x0}, ${y0} to ${x1}, ${y1}`;
}

/** Sets the colour by the object's number, so it stays when other objects are deleted. */
function colour(element, number) {
  for (let i = 0; i < COLOURS; i++) element.classList.toggle(`c${i}`, i === number % COLOURS);
}

/** Returns the size of a screen pixel in the units of the drawing. */
function pixelOf(svg) {
  const { width, height } = svg.viewBox.baseVal;
  const shown = svg.getBoundingClientRect();
  return 1 / Math.min(shown.width / width, shown.height / height);
}

function makeWindow(i, parts = ["frame"]) {
  const group = document.createElementNS(SVG, "g");
  group.setAttribute("class", "window");
  for (const name of parts) {
    const rect = document.createElementNS(SVG, "rect");
    rect.setAttribute("class", name);
    group.append(rect);
  }
  return group;
}

function setBox(rect, x, y, side) {
  Object.assign(rect.style, { x: `${x}px`, y: `${y}px`, width: `${side}px`, height: `${side}px` });
}

// --- The editable scene ----------------------------------------------------------------------

const stage = $("scene").querySelector("svg");
const canvas = $("scene").querySelector("canvas");

async function showScene(answer, tile = 0) {
  const numbered = answer.objects.map((thing, i) => ({ ...thing, number: i, shape: shapeOf(thing.box, thing.where) }));
  const objects = await Promise.all(numbered.map(withPatch));
  state.scene = { height: answer.height, width: answer.width, tile, objects };
  state.found = copyOf(state.scene);
  if (state.selected >= objects.length) state.selected = -1;
  edited("");
}

const copyOf = (scene) => ({ ...scene, objects: scene.objects.map(copyOfObject) });
const copyOfObject = (thing) => ({ ...thing, where: [...thing.where], what: [...thing.what] });

/** Adds the patch as a bitmap with an empty border: an object is blank outside its window. */
async function withPatch(thing) {
  const image = await imageOf(thing.patch);
  const bitmap = document.createElement("canvas");
  bitmap.width = bitmap.height = image.naturalWidth + 2;
  bitmap.getContext("2d").drawImage(image, 1, 1);
  thing.bitmap = bitmap;
  return thing;
}

/** Shows the scene after a change; `note` describes the change. */
function edited(note = "Edited scene") {
  const { scene } = state;
  $("undo").disabled = !note;
  if (note) showCount(scene.objects.length, note, true);
  stage.setAttribute("viewBox", `0 0 ${scene.width} ${scene.height}`);
  drawScene();
  showObjects();
  select(state.selected);
}

function drawScene() {
  const { scene } = state;
  const context = canvas.getContext("2d");
  if (!scene) return place(context, 1, 1);
  place(context, scene.width, scene.height);
  context.beginPath();
  context.rect(0, 0, scene.width, scene.height);
  context.save();
  context.clip();
  context.globalCompositeOperation = "lighter";
  for (const { where: [side, x, y], bitmap } of scene.objects) {
    const whole = (side * bitmap.width) / (bitmap.width - 2);
    context.drawImage(bitmap, x - whole / 2, y - whole / 2, whole, whole);
  }
  context.restore();
  drawWindows(stage, scene.objects, makeEditable);
}

function makeEditable(i) {
  const group = makeWindow(i, ["frame", "grip", "handle"]);
  group.setAttribute("tabindex", 0);
  group.setAttribute("role", "button");
  group.addEventListener("focus", () => select(i));
  group.addEventListener("keydown", (event) => useKey(event, i));
  group.addEventListener("pointerdown", (event) => drag(event, i));
  return group;
}

function drag(start, i) {
  if (start.button !== 0) return;
  start.preventDefault();
  select(i);
  const thing = state.scene.objects[i];
  const [side, x, y] = thing.where;
  const resizing = start.target.matches(".handle, .grip");
  const pixel = pixelOf(stage);
  const move = (event) => {
    const dx = (event.clientX - start.clientX) * pixel;
    const dy = (event.clientY - start.clientY) * pixel;
    if (resizing) setSide(thing, side + dx + dy); // both edges move, the centre stays
    else moveTo(thing, x + dx, y + dy);
    edited();
  };
  const end = () => {
    stage.removeEventListener("pointermove", move);
    for (const name of ["pointerup", "pointercancel"]) stage.removeEventListener(name, end);
  };
  stage.setPointerCapture(start.pointerId);
  stage.addEventListener("pointermove", move);
  for (const name of ["pointerup", "pointercancel"]) stage.addEventListener(name, end);
}

function moveTo(thing, x, y) {
  const { width, height } = state.scene;
  thing.where[1] = Math.min(Math.max(x, 0), width);
  thing.where[2] = Math.min(Math.max(y, 0), height);
  thing.edited = true;
}

/** Returns the length that keys and sizes are relative to: that of the model's image. */
const extent = () => state.scene.tile || Math.max(state.scene.width, state.scene.height);

function setSide(thing, side) {
  const most = 2 * Math.max(state.scene.width, state.scene.height);
  thing.where[0] = Math.min(Math.max(side, extent() / 20), most);
  thing.edited = true;
}

function useKey(event, i) {
  const thing = state.scene.objects[i];
  const step = (extent() / 50) * (event.shiftKey ? 5 : 1);
  const [side, x, y] = thing.where;
  const actions = {
    ArrowLeft: () => moveTo(thing, x - step, y),
    ArrowRight: () => moveTo(thing, x + step, y),
    ArrowUp: () => moveTo(thing, x, y - step),
    ArrowDown: () => moveTo(thing, x, y + step),
    "+": () => setSide(thing, side + step),
    "=": () => setSide(thing, side + step),
    "-": () => setSide(thing, side - step),
    c: () => copy(i),
    Delete: () => remove(i),
    Backspace: () => remove(i),
  };
  if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  actions[event.key]();
  edited();
  if (["c", "Delete", "Backspace"].includes(event.key)) stage.children[state.selected]?.focus();
}

function copy(i) {
  const twin = copyOfObject(state.scene.objects[i]);
  const step = twin.where[0] / 3;
  moveTo(twin, twin.where[1] + step, twin.where[2] + step);
  twin.number = 1 + Math.max(...state.scene.objects.map((thing) => thing.number));
  state.scene.objects.push(twin);
  state.selected = state.scene.objects.length - 1;
}

function remove(i) {
  state.scene.objects.splice(i, 1);
  state.selected = Math.min(i, state.scene.objects.length - 1);
}

function undo() {
  state.scene = copyOf(state.found);
  showCount(state.scene.objects.length);
  edited("");
}

function select(i) {
  state.selected = i;
  for (const list of [stage, $("objects")])
    [...list.children].forEach((child, k) => child.classList.toggle("selected", k === i));
  showSliders();
  if (state.whole) selectWhole(i);
}

/** Marks the outline of the selected object, and scrolls the list to it. */
function selectWhole(i) {
  const number = selectedNumber();
  [...$("picture").querySelector("svg").children].forEach((child, k) => child.classList.toggle("selected", k === number));
  [...stage.children].forEach((child, k) => child.setAttribute("tabindex", k === i ? 0 : -1));
  showTip(number);
  const [list, item] = [$("objects"), $("objects").children[i]];
  if (!item) return;
  const above = item.offsetTop; // the list is its offset parent
  const hidden = above < list.scrollTop || above + item.offsetHeight > list.scrollTop + list.clientHeight;
  if (hidden) list.scrollTop = above - (list.clientHeight - item.offsetHeight) / 2;
}

// --- The list of objects and their codes -----------------------------------------------------

function showObjects() {
  const { objects } = state.scene ?? { objects: [] };
  $("empty").hidden = objects.length > 0;
  fill($("objects"), objects.length, makeItem);
  objects.forEach((thing, i) => {
    const item = $("objects").children[i];
    const [side, x, y] = thing.where.map((v) => v.toFixed(0));
    const image = item.querySelector("img");
    const name = `Object ${thing.number + 1}`;
    const [pick, copies, deletes] = item.querySelectorAll("button");
    colour(item, thing.number);
    item.querySelector("b").textContent = name;
    for (const named of [pick, stage.children[i]]) named.setAttribute("aria-label", name);
    copies.setAttribute("aria-label", `Copy ${name}`);
    deletes.setAttribute("aria-label", `Delete ${name}`);
    if (image.getAttribute("src") !== thing.patch) image.src = thing.patch;
    item.querySelector("small").textContent = state.scene.tile ? wordsOfFound(thing) : `at ${x}, ${y}; side ${side}`;
  });
}

function wordsOfFound(thing) {
  const presence = thing.edited ? "edited" : `presence ${percent(thing.presence)}`;
  return `${presence}, box ${wordsOfBox(boxOf(thing))}`;
}

function makeItem(i) {
  const item = document.createElement("li");
  const image = Object.assign(document.createElement("img"), { alt: "" });
  const pick = button("", () => select(i));
  pick.className = "pick";
  pick.append(image);
  const words = Object.assign(document.createElement("div"), { className: "words" });
  const buttons = document.createElement("div");
  const after = (change) => () => (change(i), edited());
  buttons.append(button("Copy", after(copy)), button("Delete", after(remove)));
  words.append(document.createElement("b"), document.createElement("small"), buttons);
  item.append(pick, words);
  return item;
}

function button(text, action) {
  const made = Object.assign(document.createElement("button"), { type: "button", textContent: text });
  made.addEventListener("click", action);
  return made;
}

function showSliders() {
  const thing = state.scene?.objects[state.selected];
  $("codes").hidden = !thing;
  if (!thing) return;
  const count = state.allSliders ? thing.what.length : Math.min(SLIDERS, thing.what.length);
  $("codes-title").textContent = `Appearance of object ${thing.number + 1}`;
  $("more").hidden = thing.what.length <= SLIDERS;
  $("more").textContent = state.allSliders ? "Fewer" : `All ${thing.what.length}`;
  $("more").setAttribute("aria-expanded", state.allSliders);
  fill($("sliders"), count, makeSlider);
  [...$("sliders").children].forEach((label, k) => {
    label.querySelector("input").value = thing.what[k];
    label.querySelector("output").textContent = signed(thing.what[k]);
  });
}

const signed = (value) => (Math.round(10 * value) / 10 || 0).toFixed(1).replace("-", "−");

function makeSlider(k) {
  const label = document.createElement("label");
  const input = Object.assign(document.createElement("input"), { type: "range", min: -3, max: 3, step: 0.1 });
  const name = Object.assign(document.createElement("span"), { textContent: `z${k + 1}` });
  label.append(name, input, document.createElement("output"));
  input.addEventListener("input", () => {
    const thing = state.scene.objects[state.selected];
    thing.what[k] = Number(input.value);
    label.querySelector("output").textContent = signed(thing.what[k]);
    redraw(thing);
  });
  return label;
}

/** Renders the patch of an object whose code has changed. */
const redraw = newest(async (thing) => {
  const { width, height, name } = state.model;
  const where = [Math.min(width, height), width / 2, height / 2];
  const drawn = await askToRender({ width, height, objects: [{ where, what: thing.what }] });
  if (state.model.name !== name) return;
  thing.patch = drawn.objects[0].patch;
  thing.shape = shapeOf(drawn.objects[0].box, where);
  thing.edited = true;
  await withPatch(thing);
  edited();
});

/** Renders the edited scene and infers it again. */
async function inferScene() {
  const { scene } = state;
  if (!scene) return;
  const { width, height, tile } = scene;
  const enough = tile ? Math.sqrt(MOST_DRAWN / (width * height)) : 512 / Math.max(width, height);
  const scale = Math.min(1, enough);
  const drawn = await askToRender({
    width: Math.max(1, Math.round(scale * width)),
    height: Math.max(1, Math.round(scale * height)),
    objects: scene.objects.map(({ where, what }) => ({ where: where.map((v) => v * scale), what })),
  });
  $("invert").checked = false;
  await open(pngOf(drawn.image), "", { seen: true, whole: tile > 0, ...(tile && { tile: Math.max(2, Math.round(scale * tile)) }) });
}

async function sampleScene() {
  let answer;
  for (let tries = 0; tries < 10; tries++) {
    const seed = Math.floor(Math.random() * 1e6);
    answer = await ask("sample", { n: $("n").value, seed, patches: 1 });
    if (answer.objects.every((thing) => isInside(thing, answer))) break; // the prior also places objects outside
  }
  quiet();
  state.selected = -1;
  await showScene(answer);
  edited("Sampled from the prior");
}

const isInside = ({ where: [, x, y] }, { width, height }) => x > 0 && x < width && y > 0 && y < height;

// --- 3D: things on a table -------------------------------------------------------------------

async function randomScene() {
  const answer = await ask("sample", { n: 1, seed: Math.floor(Math.random() * 1e6), patches: 1 });
  if (!answer.rendered) {
    state.truth = null;
    clearPicture();
    return showLayout(answer);
  }
  $("invert").checked = false;
  state.truth = answer;
  await take({ blob: pngOf(answer.rendered), type: "image/png", name: "" });
}

async function showLayout(answer) {
  state.layout = answer;
  showCount(answer.count);
  $("missing").textContent = answer.rendered === null ? `No renderer available: ${answer.renderer}` : "";
  await showRendered(answer.rendered);
  showTable();
}

async function showRendered(url) {
  const context = canvas.getContext("2d");
  if (!url) return place(context, 1, 1);
  state.rendered = url;
  const image = await imageOf(url);
  place(context, image.naturalWidth, image.naturalHeight);
  context.drawImage(image, 0, 0);
}

function showTable() {
  const { layout, truth } = state;
  const top = $("top");
  if (!top.children.length) makeTable(top);
  top.querySelectorAll(".thing, .truth").forEach((group) => group.remove());
  for (const thing of layout?.objects ?? []) top.append(editableThing(thing));
  for (const thing of truth?.objects ?? []) top.append(makeThing(thing, "truth"));
  const rows = (layout?.objects ?? []).flatMap(describe);
  if (truth?.objects.length) rows.push(["Dashed", "the true position"]);
  if (!rows.length) rows.push(["", layout ? "Nothing is on the table." : "No picture yet."]);
  $("numbers").replaceChildren(
    ...rows.flatMap(([name, text]) => [
      Object.assign(document.createElement("dt"), { textContent: name }),
      Object.assign(document.createElement("dd"), { textContent: text }),
    ]),
  );
}

function describe(thing) {
  const rows = [["Kind", `${thing.kind} (${percent(thing.kinds[thing.kind] ?? 1)})`]];
  if (!thing.position_cm) return [...rows, ...Object.entries(thing.pose).map(([k, v]) => [k, v.toFixed(3)])];
  const { x, y, yaw } = thing.pose;
  const [sdX, sdY] = [thing.sd.x, thing.sd.y].map((v) => (v ? ` ± ${(100 * v).toFixed(1)}` : ""));
  rows.push(["Right of centre", `${centimetres(x)}${sdX} cm`], ["Behind centre", `${centimetres(y)}${sdY} cm`]);
  const symmetry = thing.symmetry ?? 360;
  const turned = (((yaw * 180) / Math.PI) % symmetry + symmetry) % symmetry;
  rows.push(["Rotation", symmetry ? `${turned.toFixed(0)}°` : "looks the same from all sides"]);
  if (thing.outside) rows.push(["Warning", "Far off the table, or the picture is unlike the training pictures."]);
  return rows;
}

const centimetres = (metres) => signed(100 * metres);

function draw(parent, name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach((pair) => element.setAttribute(...pair));
  element.append(...children);
  parent?.append(element);
  return element;
}

function makeTable(top) {
  draw(top, "rect", { class: "board", x: -0.45, y: -0.45, width: 0.9, height: 0.9, rx: 0.008 });
  for (const at of [-0.3, -0.15, 0, 0.15, 0.3]) {
    draw(top, "line", { class: "grid", x1: at, x2: at, y1: -0.45, y2: 0.45 });
    draw(top, "line", { class: "grid", y1: at, y2: at, x1: -0.45, x2: 0.45 });
  }
  draw(top, "text", { x: 0, y: 0.485 }, "camera");
}

/** Draws a thing from above: y points away from the camera, so up. Sizes as in renderers/world.py. */
function makeThing({ kind, pose }, role) {
  const { x = 0, y = 0, yaw = 0 } = pose;
  const turn = `translate(${x} ${-y}) rotate(${(-yaw * 180) / Math.PI})`;
  const group = draw(null, "g", { class: role, transform: turn });
  if (kind === "cube") draw(group, "rect", { class: kind, x: -0.08, y: -0.08, width: 0.16, height: 0.16 });
  if (kind === "sphere") draw(group, "circle", { class: kind, r: 0.085 });
  if (!["cube", "sphere"].includes(kind)) draw(group, "circle", { class: kind, r: 0.07 });
  if (kind === "cylinder") draw(group, "line", { x1: 0, y1: 0, x2: 0.07, y2: 0 });
  return group;
}

function editableThing(thing) {
  const group = makeThing(thing, "thing");
  const name = `${thing.kind}: arrows move it, + and − turn it`;
  const attributes = { tabindex: 0, role: "button", "aria-label": name };
  Object.entries(attributes).forEach((pair) => group.setAttribute(...pair));
  group.addEventListener("pointerdown", (event) => dragThing(event, thing));
  group.addEventListener("keydown", (event) => {
    const turn = { "+": 1, "=": 1, "-": -1 }[event.key] ?? 0;
    const dx = { ArrowLeft: -1, ArrowRight: 1 }[event.key] ?? 0;
    const dy = { ArrowDown: -1, ArrowUp: 1 }[event.key] ?? 0;
    if (!(turn || dx || dy)) return;
    event.preventDefault();
    setPose(thing, thing.pose.x + dx / 100, thing.pose.y + dy / 100, thing.pose.yaw + turn / 10);
    $("top").querySelector(".thing").focus();
  });
  return group;
}

function dragThing(start, thing) {
  start.preventDefault();
  const top = $("top");
  const { x, y } = thing.pose;
  const pixel = pixelOf(top);
  const move = (event) =>
    setPose(thing, x + (event.clientX - start.clientX) * pixel, y - (event.clientY - start.clientY) * pixel);
  top.setPointerCapture(start.pointerId);
  top.addEventListener("pointermove", move);
  const end = () => top.removeEventListener("pointermove", move);
  for (const name of ["pointerup", "pointercancel"]) top.addEventListener(name, end, { once: true });
}

function setPose(thing, x, y, yaw = thing.pose.yaw) {
  const inside = (v) => Math.min(Math.max(v, -0.4), 0.4);
  thing.pose = { ...thing.pose, x: inside(x), y: inside(y), yaw };
  thing.sd = {};
  state.truth = null;
  showTable();
  showCount(state.layout.count, "Edited scene");
  if (!$("missing").textContent) renderThings(state.layout);
}

const renderThings = newest(async ({ objects }) => {
  const drawn = await askToRender({ objects: objects.map(({ kind, pose }) => ({ kind, pose })) });
  await showRendered(drawn.image);
});

// --- The page --------------------------------------------------------------------------------

function styleOf({ name, kind, channels }) {
  if (kind === "3d") return "things";
  if (channels === 3) return "colour";
  return name.startsWith("digits") ? "digits" : "grey";
}

const wordsOf = (model) => WORDS[model.whole ? "whole" : styleOf(model)];

async function choose(name) {
  const model = state.models.find((m) => m.name === name) ?? state.models[0];
  Object.assign(state, { model, scene: null, found: null, layout: null, selected: -1, rendered: null });
  document.body.className = `is-${model.kind} is-${styleOf(model)}`;
  $("model").value = model.name;
  $("about").textContent = model.description;
  $("title").textContent = wordsOf(model).title;
  $("scene-title").textContent = model.kind === "3d" ? "Rendered scene" : "Reconstructed scene";
  $("n").replaceChildren(...[...Array(model.max_objects + 1).keys()].map((n) => new Option(`with ${n}`, n)));
  $("n").value = Math.min(2, model.max_objects);
  for (const svg of [stage, $("picture").querySelector("svg")]) svg.replaceChildren();
  latest = null;
  $("invert").checked = false;
  $("whole").checked = model.whole === true;
  $("latency").textContent = $("missing").textContent = "";
  latencies.length = 0;
  history.replaceState(null, "", `#${encodeURIComponent(model.name)}`);
  resize();
  clearPicture();
  showObjects();
  showSliders();
  await warmUp(model);
}

/** Sends a first request, because the first answer of a model is slow. */
async function warmUp(model) {
  const slow = setTimeout(() => say(`Warming up ${model.name} …`, true), 300);
  const done = model.kind === "3d" ? attempt(randomScene) : look({});
  await done;
  clearTimeout(slow);
  if ($("message").classList.contains("plain") && $("message").textContent.startsWith("Warming")) quiet();
}

function resize() {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  for (const one of [picture, canvas]) {
    const shown = one.getBoundingClientRect();
    const [width, height] = [shown.width, shown.height].map((side) => Math.round(side * ratio));
    if (width && (one.width !== width || one.height !== height)) Object.assign(one, { width, height });
  }
  if (!state.model) return;
  drawPicture();
  if (state.model.kind === "2d") drawScene();
  else if (state.rendered) showRendered(state.rendered);
}

async function attempt(work) {
  try {
    return await work();
  } catch (error) {
    say(error.message);
  }
}

function listen() {
  const click = (id, work) => $(id).addEventListener("click", () => attempt(work));
  picture.addEventListener("pointerdown", startToolAt);
  picture.addEventListener("pointermove", moveToolTo);
  click("clear", () => (clearPicture(), look({})));
  click("random", randomScene);
  click("upload", () => $("file").click());
  click("sample", sampleScene);
  click("again", inferScene);
  click("again3d", () => state.rendered && open(pngOf(state.rendered)));
  click("undo", undo);
  click("more", () => ((state.allSliders = !state.allSliders), showSliders()));
  $("message").addEventListener("click", quiet);
  for (const id of ["invert", "whole"])
    $(id).addEventListener("change", () => state.file && look({ file: state.file }));
  $("model").addEventListener("change", (event) => attempt(() => choose(event.target.value)));
  $("file").addEventListener("change", ({ target }) => {
    const [file] = target.files;
    if (file) open(file, file.name);
    target.value = "";
  });
  document.addEventListener("paste", ({ clipboardData }) => {
    const [file] = clipboardData.files;
    if (file) open(file, file.name);
  });
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("over");
  });
  document.addEventListener("dragleave", () => document.body.classList.remove("over"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("over");
    const [file] = event.dataTransfer.files;
    if (file) open(file, file.name);
  });
  for (const one of [$("picture"), $("scene")]) new ResizeObserver(resize).observe(one);
}

async function start() {
  listen();
  state.models = await ask("models");
  $("model").replaceChildren(...state.models.map(({ name }) => new Option(name, name)));
  await choose(decodeURIComponent(location.hash.slice(1)));
  document.body.dataset.ready = "yes"; // for tests
}

attempt(start);
