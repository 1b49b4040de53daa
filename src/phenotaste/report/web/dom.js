// Elements and formatted numbers. Text is never parsed as HTML: names come from data, comments from files.

// Control characters and marks that change the direction of text are replaced.
const CONTROL =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb]/gu;
const LONE_SURROGATE = /\p{Surrogate}/gu;

function sanitise(text) {
  return text.replace(/\r\n?/g, "\n").replace(CONTROL, "\ufffd").replace(LONE_SURROGATE, "\ufffd");
}

const byId = (id) => document.getElementById(id);
const content = JSON.parse(byId("content").textContent, (_, value) =>
  typeof value === "string" ? sanitise(value) : value,
);

function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

function truncate(text, length) {
  return [...text].slice(0, length).join("");
}

function oneLine(text) {
  return sanitise(text).replace(/[\n\t]+/g, " ");
}

const integers = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const digits = new Intl.NumberFormat("en-GB", { maximumSignificantDigits: 3 });

// Also zero, and figures of which the rest is small.
const WITHHELD = content.trusted ? "not known" : "withheld";

function count(value, word = "patient") {
  return value === null ? WITHHELD : `${integers.format(value)} ${word}${value === 1 ? "" : "s"}`;
}

function percent(share) {
  if (share === null) return WITHHELD;
  const value = 100 * share;
  return `${value > 0 && value < 10 ? Number(value.toFixed(1)) : Math.round(value)}%`;
}

function amount(value) {
  return value === null ? WITHHELD : digits.format(value).replace("-", "−");
}

// Similarities and odds ratios, to two decimals.
function ratio(value) {
  return value === null ? WITHHELD : value >= 10 ? amount(value) : value.toFixed(2);
}

function lines(pairs, className = "lines") {
  return make(
    "dl",
    { class: className },
    pairs.map(([label, text]) => make("div", {}, make("dt", {}, label), make("dd", {}, text))),
  );
}

// Lets a name such as age_between_60_69 break after its underscores.
function breakable(name) {
  return name.split("_").flatMap((part, i) => (i === 0 ? [part] : ["_", make("wbr"), part]));
}

// Icons differ in shape, not in colour.
const ICONS = {
  accepted: "M3 8.5 6.5 12 13 4.5",
  rejected: "M4 4 12 12M12 4 4 12",
  merged: "M3 4 8 8.5 13 4M8 8.5V13",
  open: "M5 8H11",
};

function icon(status) {
  return draw(
    "svg",
    { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" },
    draw("path", { d: ICONS[status] }),
  );
}
