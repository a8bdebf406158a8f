"use strict";
document.documentElement.classList.add("js"); // what needs a script is hidden without it
// Draws plots and gallery from the data in this page. Text from the record is only ever set as text, never as HTML.

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const { samples, unseen, tables } = data;
const PICTURES = { reconstruction: data.words.reconstruction, original: "training sample", unseen: "nearest unseen" };
const FEATURES = { reconstructed_features: "reconstructed features", features: "features of the training sample" };
const ABOUT = { ...PICTURES, ...FEATURES };
const about = (kind, i) => (kind === "reconstruction" && samples[i].stored ? "stands in the file" : ABOUT[kind]);
const OPEN_ROWS = 12; // of a table; the rest can be folded out
const CARD = { rows: 4, entries: 12 }; // of a vector, in a card
const SHOWN = 45; // cards at a time, as many pairs as the papers show
const state = { threshold: data.threshold, selected: null, trial: null, shown: SHOWN, order: [], closer: null };

function set(node, attributes, ...children) {
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
const make = (name, attributes = {}, ...children) => set(document.createElement(name), attributes, ...children);
const draw = (parent, name, attributes, ...children) =>
  set(parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", name)), attributes, ...children);

// ---- numbers

const recovered = (sample) => sample.similarity > state.threshold;
const word = (sample) => (sample.exact || sample.stored ? "exact"
  : sample.similarity > Math.max(data.recognisable, state.threshold) ? "recognisable" : recovered(sample) ? "trace" : "not recovered");
const MARKS = { exact: "proven", recognisable: "recovered", trace: "recovered trace", "not recovered": "not-recovered" };
const mark = (sample) => MARKS[word(sample)];
const percent = (share) => `${+(100 * share).toPrecision(share < 0.1 ? 2 : 3)}%`;
const short = (value) => {
  const plain = value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5);
  return (plain ? String(+value.toPrecision(6)) : value.toExponential(0)).replace("-", "−");
};
const span = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)],
  [Infinity, -Infinity]);

const range = (first, last) => Array.from({ length: last - first + 1 }, (_, i) => first + i);

function padded(values) {
  const [low, high] = span(values);
  const margin = (high - low || Math.abs(high) || 1) * 0.05;
  return { low: low - margin, high: high + margin };
}

function ticks({ low, high, log }, most) {
  if (log) {
    const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
    const powers = range(first, last).map((k) => 10 ** k);
    const inside = (value) => value >= low * 0.999 && value <= high * 1.001;
    const whole = powers.filter(inside);
    if (whole.length < 2) return powers.flatMap((power) => [power, 2 * power, 5 * power]).filter(inside);
    return whole.filter((_, i) => i % Math.ceil(whole.length / most) === 0);
  }
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  return range(Math.ceil(low / step), Math.floor(high / step)).map((k) => k * step);
}

// ---- plots: axes in an element's own width, so that text keeps its size on a phone

function labels(axis, most) {
  if (axis.choices) return axis.choices.map((choice, i) => [i, String(choice)]);
  const values = ticks(axis, most).filter((value) => !axis.whole || Number.isInteger(value));
  const found = values.map((value) => [value, (axis.format || short)(value)]);
  return axis.zero ? [[axis.low, "0"], ...found] : found;
}

function scale(axis, from, to) {
  const move = axis.log ? Math.log : (value) => value;
  const [low, high] = [move(axis.low), move(axis.high)];
  return (value) => from + ((move(value) - low) / (high - low)) * (to - from);
}

function axes(element, x, y) {
  const width = element.clientWidth;
  const height = Math.round(Math.min(360, Math.max(230, width * 0.62)));
  const across = labels(x, Math.max(2, width / 80));
  const up = labels(y, 5);
  const left = 30 + 7 * Math.max(...up.map(([, text]) => text.length));
  const box = { left, right: width - 14, top: 10, bottom: height - 40 };
  element.replaceChildren();
  const svg = draw(element, "svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const plot = { svg, box, x: scale(x, box.left, box.right), y: scale(y, box.bottom, box.top) };
  for (const [value, text] of across) {
    draw(svg, "text", { x: plot.x(value), y: box.bottom + 16, "text-anchor": "middle" }, text);
  }
  for (const [value, text] of up) {
    draw(svg, "line", { x1: box.left, x2: box.right, y1: plot.y(value), y2: plot.y(value), class: "grid" });
    draw(svg, "text", { x: box.left - 6, y: plot.y(value) + 4, "text-anchor": "end" }, text);
  }
  draw(svg, "line", { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom, class: "axis" });
  draw(svg, "text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, x.name);
  const turned = `translate(12 ${(box.top + box.bottom) / 2}) rotate(-90)`;
  draw(svg, "text", { transform: turned, "text-anchor": "middle" }, y.name);
  return plot;
}

const level = (plot, value) => draw(plot.svg, "line",
  { x1: plot.box.left, x2: plot.box.right, y1: plot.y(value), y2: plot.y(value), class: "level" });

/** A line or marks through all points, as one path. */
function path(plot, points, shape, name) {
  const d = points.map(([x, y], i) => shape(plot.x(x).toFixed(1), plot.y(y).toFixed(1), i)).join("");
  return draw(plot.svg, "path", { d, class: name });
}
const joined = (x, y, i) => `${i ? "L" : "M"}${x} ${y}`;
const steps = (x, y, i) => (i ? `H${x}V${y}` : `M${x} ${y}`);
const cross = (x, y) => `M${x - 3} ${y - 3}l6 6m-6 0l6 -6`;
const spot = (x, y) => `M${x} ${y}h0`; // round line caps make it a dot

const similarity = { ...padded([...samples.map((s) => s.similarity), ...unseen.similarity, data.threshold, data.recognisable]),
  name: data.words.similarity };
const output = { ...padded([...samples.map((s) => s.output), ...unseen.output]), name: data.words.output };
const byOutput = samples.map((_, i) => i).sort((a, b) => samples[a].output - samples[b].output);
let scatter;

function drawScatter() {
  scatter = axes(byId("scatter"), output, similarity);
  path(scatter, unseen.output.map((x, i) => [x, unseen.similarity[i]]), (x, y) => cross(+x, +y), "unseen");
  set(level(scatter, data.recognisable), { class: "level line" });
  scatter.level = level(scatter, state.threshold);
  scatter.points = samples.map((s) => draw(scatter.svg, "circle", { cx: scatter.x(s.output), cy: scatter.y(s.similarity),
    r: samples.length > 200 ? 3.2 : 4.5 }));
  scatter.ring = draw(scatter.svg, "circle", { r: 9, class: "selected" });
}

function drawRoc() {
  const least = { false: 0.5 / unseen.similarity.length, true: 0.5 / samples.length }; // a log axis has no 0
  const axis = (kind, name) => ({ low: least[kind], high: 1, log: true, zero: true, name, format: percent });
  const plot = axes(byId("roc"), axis("false", "unseen samples above"), axis("true", "training samples above"));
  const at = (fpr, tpr) => [Math.max(fpr, least.false), Math.max(tpr, least.true)];
  const low = Math.max(least.false, least.true);
  path(plot, [[low, low], [1, 1]], joined, "level");
  path(plot, data.roc.false.map((fpr, i) => at(fpr, data.roc.true[i])), steps, "curve");
  plot.ring = draw(plot.svg, "circle", { r: 6, class: "selected" });
  plot.at = at;
  return plot;
}

/** How many of the values lie above each level, as points of a falling curve. */
const above = (values) => [...values].sort((a, b) => a - b).map((value, i) => [value, 1 - i / values.length]);

function drawPower() {
  const curves = { curve: samples.map((s) => s.similarity), bound: samples.map((s) => s.projection_similarity), unseen: unseen.projection_similarity };
  const plot = axes(byId("power"), { ...padded(Object.values(curves).flat()), name: data.words.similarity },
    { low: 0, high: 1, name: "share of samples above", format: percent });
  for (const [name, values] of Object.entries(curves)) path(plot, above(values), steps, name);
}

function drawSpectrum() {
  const values = data.spectrum.map((value) => Math.max(value, 1e-12));
  const [low, high] = span([...values, Math.max(data.noise_edge, 1e-12)]);
  const plot = axes(byId("spectrum"), { low: 0, high: values.length + 1, name: "number" },
    { low: low / 1.5, high: high * 1.5, log: true, name: "singular value" });
  const points = values.map((value, i) => [i + 1, value]);
  path(plot, points.filter(([, value]) => value <= data.noise_edge), spot, "noise");
  path(plot, points.filter(([, value]) => value > data.noise_edge), spot, "signal");
  if (data.noise_edge > 0) level(plot, data.noise_edge);
}

function drawOverTime() {
  const times = data.over_time;
  const most = Math.max(1, ...times.map((point) => Math.max(point.num_recovered, point.num_recovered_unseen)));
  const [along, name] = data.sweep ? ["num_trials", "trials"] : ["seconds", "seconds of attack"];
  const plot = axes(byId("over-time"), { low: 0, high: times.at(-1)[along] * 1.03 || 1, name, whole: Boolean(data.sweep) },
    { low: 0, high: most * 1.1, whole: true, name: "samples recovered" });
  const line = (field) => times.map((point) => [point[along], point[field]]);
  path(plot, line("num_recovered_unseen"), joined, "unseen");
  path(plot, line("num_recovered"), joined, "curve");
  path(plot, line("num_recovered"), spot, "signal");
}

// ---- the trials of a sweep: against each setting, and against the attacker's own loss

const trials = data.sweep ? data.sweep.trials : [];
let slices = [];

/** An axis for a setting, and where on it a value lies. */
function settingAxis(name, { low, high, log, choices }) {
  if (choices) return { axis: { low: -0.5, high: choices.length - 0.5, choices, name }, at: (value) => choices.indexOf(value) };
  const edge = log ? (high / low) ** 0.04 : (high - low) * 0.04;
  return { axis: log ? { low: low / edge, high: high * edge, log, name } : { low: low - edge, high: high + edge, name },
    at: (value) => value };
}

function objectiveAxis(values) {
  const [low, high] = span(values);
  const log = low > 0 && high / low > 20;
  return log ? { low: low / 1.2, high: high * 1.2, log, name: "attacker’s loss" } : { ...padded(values), name: "attacker’s loss" };
}

function drawSlice(axis, places, bins) {
  const most = Math.max(1, ...trials.map((trial) => trial.num_recovered));
  const element = byId("slices").appendChild(make("div", { class: "plot" }));
  const plot = axes(element, axis, { low: 0, high: most * 1.08, whole: true, name: "samples" });
  for (const [from, to, mean] of bins) path(plot, [[from, mean], [to, mean]], joined, "level");
  for (const place of places.filter(Boolean)) {
    draw(plot.svg, "circle", { cx: plot.x(place[0]), cy: plot.y(place[1]), r: trials.length > 60 ? 3.2 : 4.5,
      class: place[1] ? "recovered" : "not-recovered" });
  }
  plot.ring = draw(plot.svg, "circle", { r: 9, class: "selected", visibility: "hidden" });
  for (const kind of ["pointermove", "pointerdown"]) {
    element.addEventListener(kind, (event) => selectTrial(pointed(event, plot, places)));
  }
  return { plot, places };
}

function drawSlices() {
  byId("slices").replaceChildren();
  const places = (value) => trials.map((trial) => {
    const x = value(trial);
    return x === undefined || x === null ? null : [x, trial.num_recovered];
  });
  slices = Object.entries(data.sweep.parameters).map(([name, parameter]) => {
    const { axis, at } = settingAxis(name, parameter);
    const bins = data.sweep.shares[name].map((bin, i) => (parameter.choices
      ? [i - 0.3, i + 0.3, bin.mean_recovered] : [bin.low, bin.high, bin.mean_recovered]));
    const known = places(({ settings }) => (name in settings ? at(settings[name]) : null));
    return drawSlice(axis, known, bins.filter((_, i) => data.sweep.shares[name][i].num_trials));
  });
  const objectives = trials.map((trial) => trial.objective).filter((value) => value !== null);
  if (objectives.length > 1) slices.push(drawSlice(objectiveAxis(objectives), places((trial) => trial.objective), []));
  if (state.trial !== null) ringTrial();
}

function selectTrial(i) {
  if (i === undefined || state.trial === i) return;
  state.trial = i;
  ringTrial();
  const { number, settings, objective, num_candidates: found, num_recovered: alone, num_best: best } = trials[i];
  const chosen = Object.entries(settings).map(([name, value]) =>
    row(name, typeof value === "number" ? short(+value.toPrecision(3)) : String(value)));
  byId("trial").replaceChildren(make("h3", {}, `Trial ${number}: ${trials[i].state}`), make("dl", {}, ...chosen,
    ...(objective === null ? [] : [row("attacker’s loss", short(+objective.toPrecision(3)))]), row("candidates", found),
    row("samples it has alone", alone), row("nearest of all to", best)));
}

function ringTrial() {
  for (const { plot, places } of slices) {
    const place = places[state.trial];
    if (place) set(plot.ring, { cx: plot.x(place[0]), cy: plot.y(place[1]) });
    set(plot.ring, { visibility: place ? "visible" : "hidden" });
  }
}

// ---- vectors: what is in them, column by column

const NUMBER = new Intl.NumberFormat("en");
const nameOf = (column) => tables.names[column] ?? `${tables.noun} ${column}`;
const brief = (value) => short(+value.toPrecision(3));

function table(rows) {
  const head = [tables.noun, "training sample", "reconstruction", "error"].map((title) => make("th", { scope: "col" }, title));
  const body = rows.map(([column, own, back]) => make("tr", {}, make("th", { scope: "row" }, nameOf(column)),
    ...[own, back, Math.abs(own - back)].map((value) => make("td", {}, brief(value)))));
  return make("table", { class: "values" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
}

/** All rows of a sample: the first ones open, the others folded; and what the page does not hold. */
function folded(i) {
  const rows = tables.rows[i];
  const rest = rows.length > OPEN_ROWS ? [make("details", {}, make("summary", {}, `${rows.length - OPEN_ROWS} more`),
    table(rows.slice(OPEN_ROWS)))] : [];
  const most = tables.largestLeft[i] ? `the error is at most ${brief(tables.largestLeft[i])}` : "both are the same";
  const left = tables.numLeft ? [make("p", { class: "soft" }, `In the other ${NUMBER.format(tables.numLeft)} ${most}.`)] : [];
  return [table(rows.slice(0, OPEN_ROWS)), ...rest, ...left];
}

/** What a sample has, and its reconstruction, by weight; what is not, or hardly, on the other side is marked. */
function entries(i, most = Infinity) {
  const rows = tables.rows[i];
  const largest = Math.max(...rows.map(([, , back]) => back), 0);
  const agree = ([, own, back]) => Math.min(own, back) > 0 && Math.min(own, back) >= Math.max(own, back) / 2;
  const own = rows.filter((row) => row[1] > 0).sort((a, b) => b[1] - a[1]);
  const back = rows.filter((row) => agree(row) || row[2] > tables.little * largest).sort((a, b) => b[2] - a[2]);
  const side = (title, these, more) => {
    const items = these.slice(0, most).map((row) => make("li", agree(row) ? {} : { class: "only" }, nameOf(row[0])));
    const left = Math.max(these.length - most, 0) + more;
    if (left) items.push(make("li", { class: "rest" }, `and ${NUMBER.format(left)} more`));
    return make("div", {}, make("p", {}, title), items.length ? make("ul", {}, ...items) : make("p", { class: "soft" }, "nothing"));
  };
  return make("div", { class: "entries" }, side("reconstruction", back, tables.more[i][1]),
    side("training sample", own, tables.more[i][0]));
}

// ---- one pair

const kinds = Object.keys(PICTURES).filter((kind) => byId(`sheet-${kind}`)); // of vectors none
const featureKinds = Object.keys(FEATURES).filter((kind) => byId(`sheet-${kind}`));
const blank = new Set(data.blank);
const bitmap = async (sheet) => { await sheet.decode(); return createImageBitmap(sheet); };
const ready = new Map([...kinds, ...featureKinds].map((kind) => [kind, bitmap(byId(`sheet-${kind}`))])); // decoded once

function image(kind, i) {
  if (kind === "reconstruction" && blank.has(i)) return make("div", { class: "blank" }, "no image was sought");
  const { columns, width, height } = byId(`sheet-${kind}`).dataset;
  const place = kind === "unseen" ? data.nearest[i] : i;
  const label = kind === "unseen" ? "nearest unseen image" : `${about(kind, i)}: ${samples[i].index}`;
  const canvas = make("canvas", { width, height, role: "img", "aria-label": label, class: kind });
  const corner = [(place % columns) * width, Math.floor(place / columns) * height];
  ready.get(kind).then((sheet) => canvas.getContext("2d").drawImage(sheet, ...corner, width, height, 0, 0, width, height));
  return canvas;
}

const row = (name, value) => make("div", {}, make("dt", {}, name), make("dd", {}, value));

const figures = (wanted, i) => (wanted.length ? [make("div", { class: "images" }, ...wanted.map((kind) =>
  make("figure", {}, image(kind, i), make("figcaption", {}, about(kind, i)))))] : []);

/** What there is to see of a sample, and its numbers. */
function pairOf(i) {
  const s = samples[i];
  const values = tables ? [make("details", featureKinds.length ? {} : { open: "" },
    make("summary", {}, featureKinds.length ? "The most distinctive features" : "Value by value"), ...folded(i))] : [];
  return [...figures(kinds, i), ...figures(featureKinds, i), ...(tables?.hasEntries ? [entries(i)] : []),
    make("dl", {}, row("class", data.classes[s.label]), row(data.words.measure, `${s.similarity.toFixed(3)}, ${word(s)}`),
      row("projection similarity", s.projection_similarity.toFixed(3)),
      row("one to one", s.assigned.toFixed(3)), row("output", s.output.toFixed(2).replace("-", "−")),
      row("correlation", s.ncc.toFixed(3)), row("L2 distance", s.l2.toFixed(2)),
      ...(s.ssim === null ? [] : [row("SSIM", s.ssim.toFixed(3))]),
      ...(s.psnr === null ? [] : [row("PSNR", `${s.psnr.toFixed(1)} dB`)])), ...values];
}

const showPair = (i) => byId("pair").replaceChildren(make("h3", {}, `Sample ${samples[i].index}`), ...pairOf(i));

function select(i) {
  if (i === undefined || state.selected === i) return;
  state.selected = i;
  showPair(i);
  placeRing();
}

function placeRing() {
  if (!scatter) return; // not drawn yet
  const s = samples[state.selected];
  set(scatter.ring, { cx: scatter.x(s.output), cy: scatter.y(s.similarity) });
}

/** Which of the places [x, y] in a plot a finger or mouse is at; undefined: none. */
function pointed(event, plot, places) {
  const frame = plot.svg.getBoundingClientRect();
  const away = (place) => (place
    ? Math.hypot(plot.x(place[0]) - event.clientX + frame.left, plot.y(place[1]) - event.clientY + frame.top) : Infinity);
  const nearest = places.reduce((best, place, i) => (away(place) < away(places[best]) ? i : best), 0);
  return away(places[nearest]) < 28 ? nearest : undefined; // as wide as a finger
}

/** Where an arrow key leads in this order. */
function stepped(event, order, selected) {
  const here = order.indexOf(selected);
  const to = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: order.length - 1 }[event.key];
  if (to === undefined) return undefined;
  event.preventDefault();
  return order[Math.min(Math.max(to, 0), order.length - 1)];
}

// ---- the threshold

function setThreshold(value) {
  state.threshold = value;
  const num = samples.filter(recovered).length;
  const numUnseen = unseen.similarity.filter((each) => each > value).length;
  const [tpr, fpr] = [num / samples.length, numUnseen / unseen.similarity.length];
  const words = { "threshold-value": value.toFixed(3), "num-recovered": num, tpr: percent(tpr), "num-unseen": numUnseen,
    fpr: percent(fpr) };
  for (const [id, text] of Object.entries(words)) byId(id).textContent = text;
  scatter.points.forEach((point, i) => set(point, { class: mark(samples[i]) }));
  set(scatter.level, { y1: scatter.y(value), y2: scatter.y(value) });
  const [x, y] = roc.at(fpr, tpr);
  set(roc.ring, { cx: roc.x(x), cy: roc.y(y) });
  if (state.selected !== null) showPair(state.selected);
}

// ---- a closer look at a card

function lookCloser(i) {
  state.closer = i;
  byId("closer-content").replaceChildren(make("h2", { id: "closer-title" }, `Sample ${samples[i].index}`), ...pairOf(i));
  if (!byId("closer").open) byId("closer").showModal();
}

// ---- the gallery

const ORDERS = {
  similarity: (a, b) => b.similarity - a.similarity,
  unlike: (a, b) => a.similarity - b.similarity,
  output: (a, b) => Math.abs(a.output) - Math.abs(b.output),
  label: (a, b) => a.label - b.label || b.similarity - a.similarity,
  index: (a, b) => a.index - b.index, // not offered where indices are hashes
};

function card(i) {
  const s = samples[i];
  const opens = make("button", { class: "open", type: "button", "aria-label": `Sample ${s.index}: look closer` }, s.index);
  opens.addEventListener("click", () => lookCloser(i));
  const shown = kinds.length ? kinds.map((kind) => image(kind, i))
    : [tables.hasEntries ? entries(i, CARD.entries) : table(tables.rows[i].slice(0, CARD.rows))];
  return make("li", {}, ...shown,
    make("p", { class: mark(s) }, make("b", {}, s.similarity.toFixed(2)), make("span", {}, word(s)), opens,
      make("span", { class: "class" }, data.classes[s.label])));
}

function drawGallery(most = state.shown) {
  if (!byId("gallery")) return; // vectors whose values are left out
  state.shown = most;
  const [label, wanted] = [byId("class").value, byId("state").value];
  const fits = (s) => (label === "" || s.label === +label)
    && (wanted === "" || word(s) === wanted);
  const order = ORDERS[byId("sort").value];
  const chosen = samples.map((_, i) => i).filter((i) => fits(samples[i])).sort((a, b) => order(samples[a], samples[b]));
  state.order = chosen;
  byId("gallery").replaceChildren(...chosen.slice(0, state.shown).map(card));
  byId("gallery-count").textContent = `${Math.min(state.shown, chosen.length)} of ${chosen.length} shown`;
  byId("more").hidden = state.shown >= chosen.length;
}

// ---- put together

let roc;
function drawPlots() {
  if (!byId("details").open) return; // what is folded has no width to draw in
  if (byId("scatter")) {
    drawScatter();
    roc = drawRoc();
    drawPower();
    setThreshold(state.threshold);
    if (state.selected !== null) placeRing();
  }
  if (byId("spectrum")) drawSpectrum();
  if (byId("over-time")) drawOverTime();
  if (data.sweep) drawSlices();
}

/** What is there only if the attack gave candidates. */
function startSamples() {
  select(samples.reduce((best, s, i) => (s.similarity > samples[best].similarity ? i : best), 0));
  drawGallery();
  const slider = byId("threshold");
  Object.assign(slider, { min: similarity.low, max: similarity.high, value: state.threshold });
  slider.addEventListener("input", () => setThreshold(+slider.value));
  slider.addEventListener("change", () => drawGallery());
  byId("calibrated").addEventListener("click", () => {
    slider.value = data.threshold;
    setThreshold(data.threshold); // not the slider's: it may have been rounded
    drawGallery();
  });
  const places = samples.map((s) => [s.output, s.similarity]);
  for (const kind of ["pointermove", "pointerdown"]) {
    byId("scatter").addEventListener(kind, (event) => select(pointed(event, scatter, places)));
  }
  byId("scatter").addEventListener("keydown", (event) => select(stepped(event, byOutput, state.selected)));
  for (const id of ["sort", "class", "state"]) byId(id)?.addEventListener("change", () => drawGallery(SHOWN));
  byId("more")?.addEventListener("click", () => drawGallery(state.shown + SHOWN));
  byId("close").addEventListener("click", () => byId("closer").close());
  byId("closer").addEventListener("keydown", (event) => {
    const next = stepped(event, state.order, state.closer);
    if (next !== undefined) lookCloser(next);
  });
}

function start() {
  drawPlots();
  if (byId("scatter")) startSamples();
  if (data.sweep) {
    const order = trials.map((_, i) => i);
    byId("slices").addEventListener("keydown", (event) => selectTrial(stepped(event, order, state.trial)));
    selectTrial(order.reduce((best, i) => (trials[i].num_recovered > trials[best].num_recovered ? i : best), 0));
  }
  byId("details").addEventListener("toggle", drawPlots);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (width !== innerWidth) drawPlots(); // a phone's address bar changes the height only
    width = innerWidth;
  });
}

start();
