// One run in full: its figures, workers, settings, and what was refused and recovered.

import { byId, element, fill, pairs, put, showIf, table } from "./dom.js";
import { DASH, ago, compact, duration, finite, percent, score, shown, spread, whole } from "./words.js";

const STATES = { running: "good", finished: "good", healthy: "good", paused: "warn", stalled: "warn", stopping: "warn", orphaned: "bad", failed: "bad" };
const MOST_WORKERS = 300;

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

function tiles(run) {
  const cut = finite(run.cut_fraction) > 0 ? `, ${percent(run.cut_fraction)} cut short` : "";
  const target = finite(Number.parseFloat(run.config.target_reward));
  // The last generation of a run is evaluated alone.
  const trained = (name) => run[name] ?? run.curves.training[name].at(-1);
  const rows = [
    ["evaluation", score(run.eval_mean), [deviation(run.eval_std), target === null ? "" : `target ${score(target)}`].filter(Boolean).join(", ")],
    ["best evaluation", score(run.eval_best ?? run.eval_mean), ""],
    ["training return", score(trained("return_mean")), [deviation(trained("return_std")), `max ${score(trained("return_max"))}${cut}`].filter(Boolean).join(", ")],
    ["generation", whole(run.generation), answered(run)],
    ["steps", compact(run.env_steps), `${whole(run.episodes)} episodes`],
    ["steps per second", run.health === "done" ? DASH : whole(run.steps_per_second), ""],
    ["workers", run.on_disk ? DASH : whole(run.living.length), finite(run.busy) === null ? "" : `${whole(run.busy)} busy on average`],
    ["time left", run.health === "done" ? DASH : duration(run.eta), `trained for ${duration(run.seconds)}`],
  ];
  fill(byId("tiles"), rows, tile, (node, [label, text, small]) => {
    put(node.children[0], label);
    put(node.children[1].firstChild, text);
    put(node.children[1].lastChild, small);
  });
}

function deviation(value) {
  return finite(value) === null ? "" : `± ${score(value)}`;
}

function tile() {
  const [made, value] = [element("div"), element("dd")];
  value.append(element("span"), element("small"));
  made.append(element("dt"), value);
  return made;
}

function answered(run) {
  const stage = { closing: "closing", final: "final episodes" }[run.stage];
  const [done, all] = String(run.answered || "").split("/").map(Number);
  const slots = all > 0 ? `${whole(done)} of ${whole(all)} slots` : "";
  return [stage, slots].filter(Boolean).join(", ");
}

function budget(run) {
  const limits = Object.entries(run.budget);
  const nearest = Math.max(0, ...limits.map(([, one]) => one.spent / one.limit));
  const words = { generations: (value) => `${whole(value)} generations`, max_steps: (value) => `${compact(value)} steps`, max_seconds: duration };
  showIf(byId("progress"), limits.length);
  byId("bar").style.width = `${Math.min(100, 100 * nearest)}%`;
  const text = limits.map(([name, one]) => `${words[name](one.left)} of ${words[name](one.limit)} left`).join(", ");
  put(byId("left"), text ? `budget: ${text}` : run.health === "done" ? "" : "no budget: it trains until it reaches its target or is stopped");
}

function workers(run) {
  const shownWorkers = [...run.living].sort((one, other) => String(one.host).localeCompare(String(other.host)) || (one.pid || 0) - (other.pid || 0)).slice(0, MOST_WORKERS);
  const more = run.living.length - shownWorkers.length;
  put(byId("count"), run.on_disk ? "the server has ended" : `${whole(run.living.length)} living of ${whole(run.ever)} known${more > 0 ? `, ${whole(more)} not shown` : ""}`);
  const columns = [["host", ""], ["pid", "right"], ["back end", ""], ["steps/s", "right"], ["busy", "right"], ["generation", "right"], ["block", ""], ["late", "right"], ["joined", "right"], ["seen", "right"]];
  showIf(byId("workers").closest("section"), run.living.length || run.health !== "done");
  table(byId("workers"), shownWorkers.length ? columns : [], shownWorkers.map((one) => [
    one.host || DASH, one.pid === null ? DASH : String(one.pid ?? DASH), one.backend || DASH, whole(one.steps_per_second), finite(one.busy) === null ? DASH : percent(one.busy), (one.generation || DASH).replace(/^generation /, ""),
    one.refuses ? ["refuses", "bad"] : one.block || (one.generation ? DASH : "joining"), whole(one.late), ago(one.joined), finite(one.seen) === null ? DASH : `${duration(one.seen)} ago`,
  ]));
  fill(byId("refusing"), shownWorkers.filter((one) => one.refuses).slice(0, 10), () => element("li"), (node, one) => put(node, `${one.host} pid ${one.pid} cannot join: ${one.refuses}`));
}

function mended(run) {
  const refused = Object.entries(run.refused).filter(([, count]) => count);
  const rows = [
    ...refused.map(([reason, count]) => [`refused: ${reason}`, whole(count)]),
    ["recovered", counted(run.recovered)], ["issued again", counted(run.reissued)], ["late results", counted(run.late)], ["duplicates", counted(run.duplicate)],
    ["lost steps", counted(run.lost_steps)], ["recoveries", run.recoveries || ""], ["audited", counted(run.audited)],
    ["changed while running", run.changed || ""], ["requests waiting", counted(run.requests)],
  ].filter(([, text]) => text !== "");
  pairs(byId("mended"), rows.length ? rows : [["nothing", "every result counted, and none was repeated"]]);
  showIf(byId("reports"), run.errors);
  put(byId("reports").firstElementChild, `${whole(run.errors)} reports of failed episodes`);
}

function counted(value) {
  return finite(value) > 0 ? whole(value) : "";
}

function settings(run) {
  const changed = new Set(run.own);
  const names = Object.keys(run.config).filter((name) => byId("all").checked || changed.has(name));
  pairs(byId("settings"), names.length ? names.map((name) => [name.replaceAll("_", " "), shown(run.config[name])]) : [["", "all at their defaults"]]);
}

// --- several runs beside each other

export function compare(runs) {
  showIf(byId("compared"), runs.length > 1);
  if (runs.length < 2) return;
  const names = [...new Set(runs.flatMap((one) => Object.keys(one.config)))].filter((name) => new Set(runs.map((one) => shown(one.config[name]))).size > 1);
  const figures = [
    ["state", stateOf], ["evaluation", (one) => spread(one.eval_mean, one.eval_std)], ["best evaluation", (one) => score(one.eval_best ?? one.eval_mean)], ["steps", (one) => compact(one.env_steps)],
    ["trained for", (one) => duration(one.seconds)], ["generation", (one) => whole(one.generation)], ["steps per second", (one) => whole(one.steps_per_second)],
  ];
  table(byId("comparison"), [["", ""], ...runs.map((one) => [one.run, ""])], [
    ...figures.map(([label, text]) => [label, ...runs.map(text)]),
    ...names.map((name) => [name.replaceAll("_", " "), ...runs.map((one) => shown(one.config[name]))]),
  ]);
}

export function traces(found) {
  const parts = (found.reports || []).flatMap((one) => [
    element("p", [one.time ? ago(one.time) : "", one.worker, one.environment, one.reason, one.trouble].filter(Boolean).map(String).join(" · ")),
    ...(one.trace ? [element("pre", one.trace.join("\n"))] : []),
  ]);
  byId("traces").replaceChildren(...(parts.length ? parts : [element("p", found.trouble || "none")]));
}
