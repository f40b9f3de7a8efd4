// Numbers of the chart and the map; the server writes all other figures.

export const DASH = "–";

export function finite(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

export function whole(value) {
  const number = finite(value);
  return number === null ? DASH : Math.round(number).toLocaleString("en-GB");
}

export function compact(value) {
  const number = finite(value);
  if (number === null) return DASH;
  for (const [size, sign] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    const unit = sign === "k" ? 1e3 : size;
    if (Math.abs(number) >= size) return `${trimmed(number / unit, 3)} ${sign}`;
  }
  return trimmed(number, 4);
}

// For an axis, where neighbours are told alike: 8 k before 10 k.
export function ticked(value) {
  return Math.abs(value) >= 1e3 && Math.abs(value) < 1e6 ? `${trimmed(value / 1e3, 4)} k` : compact(value);
}

export function trimmed(number, digits) {
  return String(Number(number.toPrecision(digits)));
}

export function score(value) {
  const number = finite(value);
  if (number === null) return DASH;
  if (Math.abs(number) >= 1e9) return number.toPrecision(4);
  if (Math.abs(number) >= 1e4) return whole(number);
  if (Math.abs(number) >= 10 || number === 0) return number.toFixed(1);
  return Math.abs(number) >= 1 ? number.toFixed(2) : trimmed(number, 3);
}

export function spread(mean, deviation) {
  const [text, number] = [score(mean), finite(deviation)];
  if (!number) return text;
  const fixed = number.toFixed((text.split(".")[1] || "").length);
  return `${text} ± ${number > Math.abs(mean) ? score(number) : Number(fixed) ? fixed : trimmed(number, 1)}`;
}

export function duration(seconds) {
  const number = finite(seconds);
  if (number === null || number < 0) return DASH;
  if (number < 100) return `${Math.round(number)} s`;
  const minutes = Math.round(number / 60);
  if (minutes < 100) return `${minutes} min`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  const hours = Math.round(minutes / 60);
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function ago(moment) {
  const then = finite(moment);
  return then === null ? DASH : `${duration(Math.max(0, Date.now() / 1000 - then))} ago`;
}
