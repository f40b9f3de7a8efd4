// The archive of map_elites: a square per cell of a grid, else a dot per elite. A click shows an elite and the command that plays it.

import { byId, pairs, put, showIf } from "./dom.js";
import { score, trimmed, whole } from "./words.js";

const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const DOT = 4;
let [shown, picked] = [undefined, null];

// Draws only an archive that is not the one shown.
export function archive(found) {
  if (found === shown) return;
  showIf(byId("archive"), found);
  if (found?.run !== shown?.run) picked = null;
  shown = found;
  if (!found) return;
  const known = Boolean(found.cell);
  showIf(byId("elites"), known);
  const figures = known ? `${whole(found.cell.length)} of ${whole(found.count)} cells · QD score ${score(found.qd_score)}` : "";
  put(byId("filled"), [figures, found.trouble].filter(Boolean).join(" · "));
  if (known) paint();
}

function paint() {
  const canvas = byId("map");
  const [side, dense] = [Math.max(1, Math.round(byId("square").clientWidth)), window.devicePixelRatio || 1];
  canvas.width = canvas.height = side * dense;
  const pen = canvas.getContext("2d");
  pen.scale(dense, dense);
  const fits = shown.fitness.filter((one) => one !== null);
  const [low, high] = fits.reduce(([least, most], one) => [Math.min(least, one), Math.max(most, one)], [Infinity, -Infinity]);
  shown.cell.forEach((_, row) => {
    pen.fillStyle = colour(((shown.fitness[row] ?? low) - low) / (high - low || 1));
    mark(pen, row, side);
  });
  const lit = shown.cell.indexOf(picked);
  if (lit >= 0) mark(pen, lit, side, getComputedStyle(canvas).color);
  const [low1, high1, low2, high2] = [shown.low[0], shown.high[0], shown.low[1], shown.high[1]].map((one) => trimmed(one ?? 0, 4));
  put(byId("across"), `across: first number, ${low1} to ${high1}${shown.low.length > 1 ? ` · up: second number, ${low2} to ${high2}` : ""}`);
  [`fitness ${score(low)}`, "", score(high)].forEach((text, place) => put(byId("ramp").children[place], text));
  byId("ramp").children[1].style.background = `linear-gradient(90deg, ${RAMP.map((one) => `rgb(${one.join(",")})`).join(", ")})`;
  about(lit);
}

function about(row) {
  const found = row >= 0;
  pairs(byId("elite"), found ? [["fitness", score(shown.fitness[row]), ""], ["behaviour", shown.behaviour[row].map((one) => trimmed(one, 4)).join(", "), ""], ["cell", String(shown.cell[row]), ""]] : []);
  showIf(byId("play"), found);
  put(byId("play").firstChild, found ? shown.command + shown.place[row].join(",") : "");
  put(byId("pick"), found ? "This command plays the elite; add --record FILE.gif to film it." : "Click a cell to see its elite and the command that plays it.");
}

function colour(share) {
  const place = Math.min(RAMP.length - 2, Math.floor(share * (RAMP.length - 1)));
  const part = share * (RAMP.length - 1) - place;
  return `rgb(${RAMP[place].map((one, index) => Math.round(one + part * (RAMP[place + 1][index] - one))).join(",")})`;
}

// Left, upper edge, width and height of a cell, or the square around a dot.
function box(row, side) {
  const [x, y] = [0, 1].map((axis) => shown.low.length > axis ? Math.min(1, Math.max(0, (shown.place[row][axis] - shown.low[axis]) / (shown.high[axis] - shown.low[axis]))) : 0.5);
  const [wide, high] = shown.shape ? [side / shown.shape[0], side / (shown.shape[1] || 1)] : [2 * DOT, 2 * DOT];
  return [x * side - wide / 2, (1 - y) * side - high / 2, wide, high];
}

function mark(pen, row, side, line) {
  const [left, top, wide, high] = box(row, side);
  pen.beginPath();
  if (shown.shape) pen.rect(left, top, wide, high);
  else pen.arc(left + DOT, top + DOT, DOT, 0, 7);
  if (!line) return pen.fill();
  pen.strokeStyle = line;
  pen.lineWidth = 2;
  pen.stroke();
}

export function followMap() {
  byId("map").addEventListener("click", (event) => {
    if (!shown?.cell) return;
    const frame = byId("map").getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
    const away = shown.cell.map((_, row) => { const [left, top, wide, high] = box(row, frame.width); return Math.max(Math.abs(x - left - wide / 2) / wide, Math.abs(y - top - high / 2) / high); });
    const nearest = away.reduce((best, one, row) => one < away[best] ? row : best, 0);
    picked = away[nearest] <= (shown.shape ? 0.5 : 1.5) ? shown.cell[nearest] : null;
    paint();
  });
  new ResizeObserver(() => shown?.cell && paint()).observe(byId("square"));
}
