// Elements made and changed in place. Text from elsewhere only ever becomes text: nothing here reads HTML.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function element(name, text = "", kind = "") {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

export function drawn(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function showIf(node, wanted) {
  if (node.hidden === Boolean(wanted)) node.hidden = !wanted;
}

// As many children as things: they are made when missing, filled again each time, and removed when too many.
export function fill(parent, things, make, refill) {
  while (parent.children.length > things.length) parent.lastElementChild.remove();
  things.forEach((thing, place) => {
    if (place >= parent.children.length) parent.append(make());
    refill(parent.children[place], thing);
  });
}

// A list of [label, text, class].
export function pairs(list, rows) {
  const wanted = rows.filter(([, text]) => text !== "");
  const flat = wanted.flatMap(([label, text, kind]) => [["dt", label, ""], ["dd", text, kind || ""]]);
  if (list.children.length !== flat.length) list.replaceChildren(...flat.map(([name]) => element(name)));
  flat.forEach(([, text, kind], place) => {
    put(list.children[place], text);
    list.children[place].className = kind;
  });
}

// Columns are [title, class]; rows are lists of texts, or of [text, class].
export function table(node, columns, rows) {
  if (!node.tHead) node.append(element("thead"), element("tbody"));
  fill(node.tHead, [columns], () => element("tr"), (line, cells) => fill(line, cells, () => element("th"), cell));
  fill(node.tBodies[0], rows, () => element("tr"), (line, cells) =>
    fill(line, cells.map((one, place) => withSide(one, columns[place][1])), () => element("td"), cell));
}

function withSide(one, side) {
  const [text, kind] = Array.isArray(one) ? one : [one, ""];
  return [text, [side, kind].filter(Boolean).join(" ")];
}

function cell(node, [text, kind]) {
  put(node, text);
  if (node.className !== (kind || "")) node.className = kind || "";
  if (node.title !== text) node.title = text;
}
