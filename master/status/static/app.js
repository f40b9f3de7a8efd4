// The page: which runs are shown, and looking at them again and again.

import { archive, followMap } from "./archive.js";
import { draw, follow } from "./chart.js";
import { chip, compare, detail, text, traces } from "./detail.js";
import { byId, element, fill, put, showIf } from "./dom.js";
import { whole } from "./words.js";

const [COLORS, MOST] = [8, 20];
const view = { x: "env_steps", figure: "", evaluation: true, training: true };
const chosen = { focus: null, ticked: [] };
const data = { runs: [], each: new Map(), archive: null };
let [timer, every, asked, reading] = [null, 2, 0, null];

// --- which runs, kept in the address so that it can be sent to others

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  chosen.focus = given.get("run");
  chosen.ticked = (given.get("with") || "").split(" ").filter(Boolean);
  if (["env_steps", "seconds", "generation"].includes(given.get("x"))) view.x = given.get("x");
  view.figure = /^\w{1,60}$/.test(given.get("y") || "") ? given.get("y") : "";
  for (const radio of document.querySelectorAll("input[name=x]")) radio.checked = radio.value === view.x;
}

function writeAddress() {
  const given = new URLSearchParams({ ...(chosen.focus ? { run: chosen.focus } : {}), ...(chosen.ticked.length ? { with: chosen.ticked.join(" ") } : {}), ...(view.x === "env_steps" ? {} : { x: view.x }), ...(view.figure ? { y: view.figure } : {}) });
  history.replaceState(null, "", `#${given}`);
}

function shownRuns() {
  return [...new Set([chosen.focus, ...chosen.ticked].filter(Boolean))].slice(0, MOST);
}

// The study whose seed a run is, if it has others here.
function studyOf(run) {
  const study = /^(.+)-s\d+$/.exec(run)?.[1];
  return study && seedsOf(study).length > 1 ? study : null;
}

function seedsOf(study) {
  return data.runs.map((one) => one.run).filter((run) => run.startsWith(`${study}-s`) && /^\d+$/.test(run.slice(study.length + 2))).sort((a, b) => a.slice(study.length + 2) - b.slice(study.length + 2));
}

// Each study's seeds as one curve.
function banded(colored) {
  const whole = new Map();
  for (const one of colored) {
    const study = studyOf(one.run);
    const name = study ?? one.run;
    whole.set(name, [...(whole.get(name) || []), one]);
  }
  return [...whole].map(([name, ones]) => (ones.length > 1 ? { ...ones[0], run: `${name}, ${ones.length} seeds (mean and range)`, seeds: ones, expect: ones[0].expect } : ones[0]));
}

// A run keeps its colour while it is shown.
const slots = [];
function colorOf(run) {
  if (!slots.includes(run)) {
    const free = slots.findIndex((one) => !shownRuns().includes(one));
    slots[free < 0 ? slots.length : free] = run;
  }
  return `var(--c${slots.indexOf(run) % COLORS})`;
}

function focus(run) {
  chosen.focus = run;
  byId("reports").open = false;
  changed();
}

function tick(run, wanted) {
  chosen.ticked = chosen.ticked.filter((one) => one !== run);
  if (wanted) chosen.ticked.push(run);
  else if (chosen.focus === run) chosen.focus = chosen.ticked[0] || null;
  if (chosen.focus === null && wanted) chosen.focus = run;
  changed();
}

function changed() {
  writeAddress();
  render();
  look();
}

// --- looking

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(15000) });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.trouble || `the page's server answered ${answer.status}`);
  return found;
}

async function look() {
  clearTimeout(timer);
  const turn = ++asked;
  try {
    const listed = await ask("/api/runs");
    if (turn !== asked) return;
    data.runs = listed.runs;
    every = listed.every;
    if (chosen.focus === null && data.runs.length) chosen.focus = (data.runs.find((one) => one.health === "healthy") || data.runs[0]).run;
    const known = shownRuns().filter((run) => data.runs.some((one) => one.run === run));
    // One that has gone since it was listed takes no other with it.
    const found = await Promise.all(known.map((run) => ask(`/api/runs/${encodeURIComponent(run)}${view.figure ? `?figure=${view.figure}` : ""}`).catch((error) => ({ gone: error.message }))));
    if (turn !== asked) return;
    data.each = new Map(found.filter((one) => !one.gone).map((one) => [one.run, one]));
    lookAtArchive(data.each.get(chosen.focus));
    const missing = chosen.focus && !known.includes(chosen.focus) ? `there is no run ${chosen.focus} here` : "";
    pulse(listed.trouble || found.map((one) => one.gone || one.trouble).find(Boolean) || missing, !listed.trouble);
  } catch (error) {
    if (turn !== asked) return;
    pulse(error instanceof TypeError || error.name === "TimeoutError" ? "es-status --web no longer answers: the figures below may be old" : error.message, false);
  }
  render();
  timer = setTimeout(look, document.hidden ? 30000 : 1000 * every);
}

// Read again only after another generation, while the page shows the rest. It can take longer than a look.
async function lookAtArchive(run) {
  if (run?.config.strategy !== "map_elites") return void (data.archive = null);
  const newest = [run.run, run.generation, run.state].join(" ");
  if (data.archive?.newest === newest || reading === run.run) return;
  reading = run.run;
  const found = await ask(`/api/runs/${encodeURIComponent(run.run)}/archive`).catch((error) => ({ trouble: error.message }));
  if (reading === run.run) reading = null;
  if (chosen.focus !== run.run) return;
  data.archive = { ...found, newest, run: run.run };
  archive(data.archive);
}

function pulse(trouble, live) {
  put(byId("trouble"), trouble || "");
  showIf(byId("trouble"), trouble);
  const ended = ["done", "failed"].includes(data.each.get(chosen.focus)?.health);
  put(byId("pulse"), !live ? "no contact" : ended ? "ended" : "live");
  byId("pulse").className = !live ? "lost" : ended ? "" : "live";
}

// --- showing

function render() {
  const shown = shownRuns();
  fill(byId("list"), data.runs, listed, (node, run) => relist(node, run, shown));
  reveal(byId("list").querySelector(".focus"));
  const found = shown.map((run) => data.each.get(run)).filter(Boolean);
  const one = data.each.get(chosen.focus);
  const colored = found.map((each) => ({ run: each.run, color: colorOf(each.run), curves: each.curves, target: each.target ?? Number.parseFloat(each.config.target_reward), expect: each.expect }));
  const studies = new Set(found.map((each) => studyOf(each.run)).filter((study) => study && found.filter((each) => studyOf(each.run) === study).length > 1));
  showIf(byId("band").parentNode, studies.size);
  const drawnRuns = byId("band").checked ? banded(colored) : colored;
  const study = one && studyOf(one.run);
  showIf(byId("seeds"), study && seedsOf(study).some((run) => !shown.includes(run)));
  put(byId("seeds"), study ? `show all ${seedsOf(study).length} seeds of ${study}` : "");
  figures(found);
  put(byId("place"), one ? one.redis : data.runs.length ? data.runs[0].redis : "no runs yet");
  document.title = one ? `${text(one, "eval_mean")} · ${one.run}` : "es-queue";
  detail(one);
  archive(data.archive?.run === chosen.focus ? data.archive : null);
  legend(drawnRuns, found, draw(drawnRuns, view).expected.length);
  compare(found);
}

// What the runs have recorded; only one figure at a time is read.
function figures(found) {
  const known = new Map(found.flatMap((one) => one.recorded));
  if (view.figure && !known.has(view.figure)) known.set(view.figure, "");
  fill(byId("figure"), [["", "returns"], ...known], () => element("option"), (node, [name, sentence]) => {
    node.value = name;
    node.title = sentence;
    put(node, name ? name.replaceAll("_", " ") : sentence);
  });
  byId("figure").value = view.figure;
  showIf(byId("lines"), !view.figure);
}

function legend(colored, found, expected) {
  const each = Math.max(1, ...found.map((one) => one.curves.training.each));
  const tasks = new Set(found.map((one) => one.env || one.config.objective));
  const texts = [
    ...(tasks.size > 1 && !view.figure ? [["these runs have different environments: their returns cannot be compared", ""]] : []),
    ...(colored.length > 1 || colored[0]?.seeds ? colored.map((one) => [one.run, one.color]) : []),
    ...(expected ? [["◇ the recipe's return after that many steps", ""]] : []),
    ...(each > 1 ? [[`a point is the mean of ${whole(each)} generations`, ""]] : []),
  ];
  fill(byId("legend"), texts, () => { const made = element("span"); made.append(element("span", "", "dot"), element("span")); return made; }, (node, [text, color]) => {
    showIf(node.firstChild, color);
    node.firstChild.style.background = color;
    put(node.lastChild, text);
  });
}

function listed() {
  const [made, box, button, first, second] = [element("li"), element("input"), element("button"), element("span", "", "row"), element("span", "", "row")];
  box.type = "checkbox";
  button.type = "button";
  const name = element("span", "", "run");
  name.append(element("span"), element("span"));
  first.append(name, element("span", "", "score"));
  second.append(element("span", "", "more"), element("span", "", "chip"));
  button.append(first, second);
  made.append(box, button);
  box.addEventListener("change", () => tick(made.dataset.run, box.checked));
  button.addEventListener("click", () => focus(made.dataset.run));
  return made;
}

function relist(node, run, shown) {
  const [box, button] = node.children;
  node.dataset.run = run.run;
  node.className = run.run === chosen.focus ? "focus" : "";
  box.checked = shown.includes(run.run);
  box.disabled = !box.checked && shown.length >= MOST;
  box.setAttribute("aria-label", `curve of ${run.run}`);
  box.style.setProperty("--own", box.checked ? colorOf(run.run) : "");
  const [[name, best], [more, state]] = [...button.children].map((row) => row.children);
  // A long name is cut in its middle: runs often differ at their ends.
  const head = run.run.length > 16 ? run.run.length - 8 : run.run.length;
  put(name.firstChild, run.run.slice(0, head));
  put(name.lastChild, run.run.slice(head));
  name.title = run.run;
  put(best, `best ${text(run, "eval_best", "eval_mean")}`);
  put(more, `${run.env || "?"} · ${text(run, "env_steps")} steps`);
  chip(state, run);
}

// The focused run is scrolled into view when it becomes the focus; then the list is the reader's.
let revealed = null;
function reveal(node) {
  if (!node || revealed === chosen.focus) return;
  revealed = chosen.focus;
  byId("runs").scrollTop = node.offsetTop - (byId("runs").clientHeight - node.offsetHeight) / 2;
}

// --- beginning

for (const radio of document.querySelectorAll("input[name=x]")) radio.addEventListener("change", () => { view.x = radio.value; writeAddress(); render(); });
for (const name of ["evaluation", "training"]) byId(name).addEventListener("change", () => { view[name] = byId(name).checked; render(); });
byId("all").addEventListener("change", render);
byId("band").addEventListener("change", render);
byId("figure").addEventListener("change", () => { view.figure = byId("figure").value; changed(); });
byId("seeds").addEventListener("click", () => { chosen.ticked = seedsOf(studyOf(chosen.focus)); byId("band").checked = true; changed(); });
byId("reports").addEventListener("toggle", async () => {
  if (!byId("reports").open || !chosen.focus) return;
  try {
    traces(await ask(`/api/runs/${encodeURIComponent(chosen.focus)}/errors`));
  } catch (error) {
    traces({ trouble: error.message });
  }
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
window.addEventListener("hashchange", () => { readAddress(); look(); });
readAddress();
follow();
followMap();
look();
