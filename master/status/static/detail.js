// One run in full: its figures, workers, settings, and what was refused and recovered.

import { byId, element, fill, pairs, put, showIf, table } from "./dom.js";
import { DASH, ago, score, whole } from "./words.js";

const STATES = { running: "good", finished: "good", healthy: "good", paused: "warn", stalled: "warn", stopping: "warn", orphaned: "bad", failed: "bad" };

export function stateOf(run) {
  return ["stalled", "orphaned"].includes(run.health) ? run.health : run.state;
}

export function chip(node, run) {
  const state = stateOf(run);
  put(node, state);
  node.className = `chip ${STATES[state] || ""}`;
}

export function detail(run) {
  showIf(byId("head"), run);
  showIf(byId("detail"), run);
  if (!run) return;
  put(byId("name"), run.run);
  chip(byId("state"), run);
  put(byId("what"), [run.env || run.config.objective, run.strategy, run.config.policy].filter(Boolean).join(" · "));
  showIf(byId("why"), run.health_why);
  put(byId("why"), run.health_why || "");
  byId("why").className = ["orphaned", "failed"].includes(run.health) ? "bad" : "";
  tiles(run);
  budget(run);
  workers(run);
  mended(run);
  settings(run);
  pairs(byId("about"), [
    [run.on_disk ? "folder" : "server", run.redis], ["master", run.master || ""], ["queue", run.queue || ""], ["started", ago(run.started)],
    ["updated", ago(run.updated)], ["continue with", run.health === "healthy" || run.state === "finished" ? "" : run.resume, "mono"], ["digest", run.digest || "", "mono"],
  ]);
}

// A figure in the words of es-status.
export function text(run, ...names) {
  return names.map((name) => run.shown[name]).find(Boolean) || DASH;
}

function tiles(run) {
  const small = (...parts) => parts.filter(Boolean).join(", ");
  const about = (sign, name) => run.shown[name] && `${sign} ${run.shown[name]}`;
  // The last generation of a run is only evaluated.
  const trained = (name) => run.shown[name] || score(run.curves.training[name].at(-1));
  const ended = ["done", "failed"].includes(run.health);
  const rows = [
    ["evaluation", text(run, "eval_mean"), small(about("± std", "eval_std"), about("target", "target"), run.eval_info)],
    ["best evaluation", text(run, "eval_best", "eval_mean"), ""],
    ["training return", trained("return_mean"), small(`± std ${trained("return_std")}`, `max ${trained("return_max")}`, run.cut_fraction > 0 && `${run.shown.cut_fraction} cut short`, run.info)],
    ["generation", text(run, "generation"), small({ closing: "closing", final: "final episodes" }[run.stage], run.shown.results)],
    ["steps", text(run, "env_steps"), small(`${text(run, "episodes")} episodes`, run.eval_steps > 0 && `and ${run.shown.eval_steps} steps in evaluations`)],
    ["steps per second", ended ? DASH : text(run, "steps_per_second"), ended || !run.eval_steps_per_second ? "" : `in training, and ${run.shown.eval_steps_per_second} in evaluations`],
    ["workers", run.on_disk || ended ? DASH : whole(run.living.length), run.shown.busy ? `${run.shown.busy} busy on average` : ""],
    ["time left", text(run, "eta"), `trained for ${text(run, "seconds")}`],
  ];
  fill(byId("tiles"), rows, tile, (node, [label, value, more]) => {
    put(node.children[0], label);
    put(node.children[1].firstChild, value);
    put(node.children[1].lastChild, more);
  });
}

function tile() {
  const [made, value] = [element("div"), element("dd")];
  value.append(element("span"), element("small"));
  made.append(element("dt"), value);
  return made;
}

function budget(run) {
  const limits = Object.values(run.budget);
  showIf(byId("progress"), limits.length);
  byId("bar").style.width = `${Math.min(100, 100 * Math.max(0, ...limits.map((one) => one.spent / one.limit)))}%`;
  put(byId("left"), run.shown.budget ? `budget: ${run.shown.budget}` : "");
}

function workers(run) {
  const rows = run.shown.living;
  const more = run.living.length - rows.length;
  put(byId("count"), run.on_disk ? "the server has ended" : `${whole(run.living.length)} living of ${whole(run.ever)} known${more > 0 ? `, ${whole(more)} not shown` : ""}`);
  showIf(byId("workers").closest("section"), rows.length || run.health !== "done");
  const columns = Object.keys(rows[0] || {}).map((name) => [name, ["host", "back end", "block"].includes(name) ? "" : "right"]);
  table(byId("workers"), columns, rows.map((one) => Object.values(one).map((cell) => cell === "refuses" ? [cell, "bad"] : cell)));
  fill(byId("refusing"), run.living.filter((one) => one.refuses).slice(0, 10), () => element("li"), (node, one) => put(node, `${one.host} pid ${one.pid} cannot join: ${one.refuses}`));
}

function mended(run) {
  const refused = Object.entries(run.refused).filter(([, count]) => count);
  const rows = [
    ...refused.map(([reason, count]) => [`refused: ${reason}`, whole(count)]),
    ["repeated", run.shown.recoveries], ["audited", run.shown.audited || ""],
    ["changed while running", run.changed || ""], ["requests waiting", run.requests ? whole(run.requests) : ""],
  ].filter(([, value]) => value !== "");
  pairs(byId("mended"), rows.length ? rows : [["nothing", "every result counted, and none was repeated"]]);
  showIf(byId("reports"), run.errors);
  put(byId("reports").firstElementChild, `${whole(run.errors)} reports of failed episodes`);
}

function settings(run) {
  const changed = new Set(run.own);
  const rows = Object.entries(run.settings).filter(([name]) => byId("all").checked || changed.has(name));
  pairs(byId("settings"), rows.length ? rows.map(([name, value]) => [name.replaceAll("_", " "), value]) : [["", "all at their defaults"]]);
}

// --- several runs beside each other

export function compare(runs) {
  showIf(byId("compared"), runs.length > 1);
  if (runs.length < 2) return;
  const names = [...new Set(runs.flatMap((one) => Object.keys(one.settings)))].filter((name) => new Set(runs.map((one) => one.settings[name])).size > 1);
  const figures = [
    ["state", [stateOf]], ["evaluation", ["evaluation"]], ["best evaluation", ["eval_best", "eval_mean"]], ["steps", ["env_steps"]],
    ["trained for", ["seconds"]], ["generation", ["generation"]], ["steps per second", ["steps_per_second"]],
  ];
  table(byId("comparison"), [["", ""], ...runs.map((one) => [one.run, ""])], [
    ...figures.map(([label, names]) => [label, ...runs.map((one) => (names[0] === stateOf ? stateOf(one) : text(one, ...names)))]),
    ...names.map((name) => [name.replaceAll("_", " "), ...runs.map((one) => one.settings[name] || "")]),
  ]);
}

export function traces(found) {
  const parts = (found.reports || []).flatMap((one) => [
    element("p", [one.time ? ago(one.time) : "", one.worker, one.environment, one.reason, one.trouble].filter(Boolean).map(String).join(" · ")),
    ...(one.trace ? [element("pre", one.trace.join("\n"))] : []),
  ]);
  byId("traces").replaceChildren(...(parts.length ? parts : [element("p", found.trouble || "none")]));
}
