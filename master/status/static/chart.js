// Learning curves as SVG: evaluations with their spread, training returns, targets, and what a recipe expects.

import { byId, drawn, element, fill, put, showIf } from "./dom.js";
import { compact, duration, finite, score, spread, ticked, trimmed, whole } from "./words.js";

const EDGE = { left: 52, right: 16, top: 12, bottom: 28 };
const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
const POINTS = 100;
const AXES = { env_steps: compact, seconds: duration, generation: whole };

let last = null;
let pointed = null;

// runs: [{run, color, curves, target, expect, seeds}]; view: {x, figure, evaluation, training}; seeds: the runs of a study, as one
export function draw(runs, view) {
  last = { runs, view, ...scales(runs, view) };
  showIf(byId("nothing"), last.empty);
  byId("chart").replaceChildren(...(last.empty ? [] : picture(last)));
  point();
  return last;
}

function points(curve, x, y) {
  const found = [];
  for (let place = 0; place < (curve?.[y] || []).length; place++) {
    const [across, up] = [finite(curve[x][place]), finite(curve[y][place])];
    if (across === null || up === null) continue;
    // The closing evaluation takes no steps: it takes the place of the one before.
    if (found.at(-1)?.across === across) found.pop();
    found.push({ across, up, place });
  }
  return found;
}

// A chosen figure takes the place of the evaluations.
function seriesOf(one, view) {
  if (one.seeds) return together(one, one.seeds.map((each) => seriesOf(each, view)));
  if (view.figure) return { ...one, evaluation: points(one.curves.figure, view.x, view.figure).map(flat), train: [] };
  const deviation = one.curves.evaluation.eval_std;
  const wide = (each) => finite(deviation[each.place]) || 0;
  const evaluation = view.evaluation ? points(one.curves.evaluation, view.x, "eval_mean").map((each) => ({ ...each, low: each.up - wide(each), high: each.up + wide(each) })) : [];
  return { ...one, evaluation, train: view.training ? points(one.curves.training, view.x, "return_mean") : [] };
}

function flat(each) {
  return { ...each, low: each.up, high: each.up };
}

// The mean of a study's seeds with their range, from where all have begun; one that has ended keeps its last value.
function together(one, seeds) {
  const merged = (curves) => {
    const known = curves.filter((each) => each.length);
    if (!known.length) return [];
    const [first, last] = [Math.max(...known.map((each) => each[0].across)), Math.max(...known.map((each) => each.at(-1).across))];
    return Array.from({ length: POINTS + 1 }, (_, place) => {
      const across = first + ((last - first) * place) / POINTS;
      const ups = known.map((each) => between(each, across));
      return { across, up: ups.reduce((sum, up) => sum + up / ups.length, 0), low: Math.min(...ups), high: Math.max(...ups) };
    });
  };
  return { ...one, evaluation: merged(seeds.map((each) => each.evaluation)), train: merged(seeds.map((each) => each.train)) };
}

function between(curve, across) {
  const after = curve.findIndex((each) => each.across >= across);
  if (after <= 0) return after ? curve.at(-1).up : curve[0].up;
  const [left, right] = [curve[after - 1], curve[after]];
  return left.up + ((right.up - left.up) * (across - left.across)) / (right.across - left.across || 1);
}

function scales(runs, view) {
  const series = runs.map((one) => seriesOf(one, view));
  const all = series.flatMap((one) => [...one.evaluation, ...one.train]);
  if (!all.length) return { series, empty: true, expected: [] };
  const highest = Math.max(...all.map((one) => one.across)) || 1;
  const targets = view.figure ? [] : [...new Set(series.map((one) => finite(one.target)).filter((one) => one !== null))];
  const expected = view.x === "env_steps" && view.evaluation && !view.figure ? series.flatMap((one) => one.expect.filter((each) => each.env_steps <= highest)) : [];
  const ups = [...all.flatMap((one) => [one.low ?? one.up, one.high ?? one.up]), ...targets, ...expected.map((one) => one.reward)];
  const box = byId("chart").getBoundingClientRect();
  const [low, high] = padded(Math.min(...ups), Math.max(...ups));
  const first = Math.min(...all.map((one) => one.across));
  const left = first < highest / 4 || first === highest ? 0 : first;
  const across = (value) => EDGE.left + ((value - left) / (highest - left || 1)) * (box.width - EDGE.left - EDGE.right);
  const up = (value) => EDGE.top + ((high - value) / (high - low)) * (box.height - EDGE.top - EDGE.bottom);
  return { series, empty: false, box, low, high, left, highest, across, up, targets, expected };
}

function padded(low, high) {
  const edge = high > low ? (high - low) * 0.05 : Math.max(1, Math.abs(high) * 0.1);
  return [low - edge, high + edge];
}

function picture(scene) {
  const { series, box, across, up, targets, expected } = scene;
  const clip = drawn("clipPath", { id: "inside" });
  clip.append(drawn("rect", { x: EDGE.left, y: 0, width: Math.max(0, box.width - EDGE.left - EDGE.right + 4), height: box.height - EDGE.bottom }));
  const inside = drawn("g", { "clip-path": "url(#inside)" });
  for (const one of series) if (one.evaluation.length > 1) inside.append(band(one, scene));
  for (const target of targets) inside.append(drawn("path", { class: "target", d: `M${EDGE.left} ${up(target)}H${box.width - EDGE.right}` }));
  for (const one of series) if (one.train.length) inside.append(curve(one.train, "train", one.color, scene));
  for (const one of series) if (one.evaluation.length) inside.append(curve(one.evaluation, "eval", one.color, scene));
  const diamonds = expected.map((one) => diamond(across(one.env_steps), up(one.reward), one.note));
  const dots = series.flatMap((one) => one.evaluation.slice(-1).map((end) => drawn("circle", { cx: across(end.across), cy: up(end.up), r: 4, fill: one.color })));
  const named = targets.map((target) => drawn("text", { x: box.width - EDGE.right, y: up(target) - 5, "text-anchor": "end" }, `target ${score(target)}`));
  return [clip, ...lines(scene), inside, ...diamonds, ...dots, ...named, drawn("g", { id: "cross" })];
}

function path(spots) {
  return spots.map(([x, y], place) => `${place ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

function curve(spots, kind, color, { across, up }) {
  const places = spots.map((one) => [across(one.across), up(one.up)]);
  if (places.length === 1) places.push([places[0][0] + 3, places[0][1]]);
  return drawn("path", { class: kind, d: path(places), stroke: color });
}

function band({ evaluation, color }, { across, up }) {
  const above = evaluation.map((one) => [across(one.across), up(one.high)]);
  const below = evaluation.map((one) => [across(one.across), up(one.low)]).reverse();
  return drawn("path", { class: "band", d: `${path([...above, ...below])}Z`, fill: color });
}

function diamond(x, y, note) {
  const made = drawn("path", { class: "expect", d: `M${x} ${y - 6}l6 6l-6 6l-6-6Z` });
  made.append(drawn("title", {}, `expected: ${note}`));
  return made;
}

// --- axes

function ticks(low, high, most) {
  const unit = 10 ** Math.floor(Math.log10((high - low) / Math.max(1, most)));
  const found = [10, 5, 2, 1, 0.5].map((step) => multiples(low, high, step * unit));
  // As many as there is room for, and at least three.
  return found.findLast((one) => one.length >= 3 && one.length <= most + 1) || found.find((one) => one.length >= 3);
}

function multiples(low, high, step) {
  const found = [];
  for (let count = Math.ceil(low / step); count * step <= high && found.length < 50; count++) found.push(count * step);
  return found;
}

function lines({ box, low, high, left, highest, across, up, view }) {
  const [most, right, foot] = [Math.max(3, Math.floor(box.width / 95)), box.width - EDGE.right, box.height - EDGE.bottom];
  const step = TIMES.find((one) => (highest - left) / one <= most) || (highest - left) / most;
  const [unit, sign] = UNITS.find(([one]) => one <= step) || [1, "s"];
  const named = { env_steps: ticked, seconds: (value) => `${trimmed(value / unit, 3)} ${sign}`, generation: whole }[view.x];
  const places = view.x === "seconds" ? multiples(left, highest, step) : ticks(left, highest, most).filter((one) => view.x !== "generation" || Number.isInteger(one));
  const made = [];
  for (const value of ticks(low, high, Math.max(2, Math.floor(box.height / 60)))) {
    made.push(drawn("path", { class: "grid", d: `M${EDGE.left} ${up(value)}H${right}` }));
    made.push(drawn("text", { x: EDGE.left - 8, y: up(value) + 4, "text-anchor": "end" }, ticked(value)));
  }
  made.push(drawn("path", { class: "axis", d: `M${EDGE.left} ${foot}H${right}` }));
  for (const value of places) made.push(drawn("text", { x: across(value), y: box.height - 8, "text-anchor": across(value) > right - 20 ? "end" : "middle" }, named(value)));
  return made;
}

// --- what is under the pointer

export function follow() {
  const plot = byId("plot");
  plot.addEventListener("pointermove", (event) => { pointed = event.clientX - plot.getBoundingClientRect().left; point(); });
  plot.addEventListener("pointerleave", () => { pointed = null; point(); });
  new ResizeObserver(() => last && draw(last.runs, last.view)).observe(plot);
}

function nearest(spots, at, across) {
  return spots.reduce((best, one) => (best === null || Math.abs(across(one.across) - at) < Math.abs(across(best.across) - at) ? one : best), null);
}

function point() {
  const tip = byId("tip");
  const wanted = pointed !== null && last && !last.empty && pointed >= EDGE.left - 4;
  showIf(tip, wanted);
  byId("cross")?.replaceChildren();
  if (!wanted) return;
  const rows = last.series.flatMap(found);
  if (!rows.length) return showIf(tip, false);
  const middle = nearest(rows, pointed, last.across);
  const x = last.across(middle.across);
  byId("cross").append(drawn("path", { class: "cross", d: `M${x} ${EDGE.top}V${last.box.height - EDGE.bottom}` }));
  const texts = [[AXES[last.view.x](middle.across) + { env_steps: " steps", seconds: "", generation: ". generation" }[last.view.x], ""], ...rows.map((one) => [one.text, one.color])];
  fill(tip, texts, () => element("p"), tipRow);
  tip.style.left = `${x < last.box.width / 2 ? x + 14 : Math.max(0, x - 14 - tip.offsetWidth)}px`;
}

function found(one) {
  const [evaluated, trained] = [nearest(one.evaluation, pointed, last.across), nearest(one.train, pointed, last.across)];
  const name = last.series.length > 1 || one.seeds ? `${one.run}: ` : "";
  return [
    ...(evaluated ? [{ ...evaluated, color: one.color, text: `${name}${last.view.figure ? last.view.figure.replaceAll("_", " ") : "evaluation"} ${one.seeds ? `${score(evaluated.up)} (${score(evaluated.low)} to ${score(evaluated.high)})` : spread(evaluated.up, evaluated.high - evaluated.up)}` }] : []),
    ...(trained ? [{ ...trained, color: one.color, text: `${name}training ${score(trained.up)}` }] : []),
  ];
}

function tipRow(node, [text, color]) {
  if (!node.firstChild) node.append(element("span", "", "dot"), element("span"));
  showIf(node.firstChild, color);
  node.firstChild.style.background = color;
  put(node.lastChild, text);
}
