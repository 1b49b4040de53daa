// Making elements and wording numbers. Text is only ever set as text: names come from data, comments from files.

// What cannot be seen, or turns the writing around, is shown as a replacement character.
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb]/gu;
const LONE = /\p{Surrogate}/gu;

function plain(text) {
  return text.replace(/\r\n?/g, "\n").replace(UNSEEN, "\ufffd").replace(LONE, "\ufffd");
}

const byId = (id) => document.getElementById(id);
const content = JSON.parse(byId("content").textContent, (_, value) =>
  typeof value === "string" ? plain(value) : value,
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

function cut(text, length) {
  return [...text].slice(0, length).join("");
}

function oneLine(text) {
  return plain(text).replace(/[\n\t]+/g, " ");
}

const integers = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const digits = new Intl.NumberFormat("en-GB", { maximumSignificantDigits: 3 });

const FEW = content.trusted ? "not known" : `fewer than ${content.fewest} patients`;

function count(value, word = "patient") {
  return value === null ? FEW : `${integers.format(value)} ${word}${value === 1 ? "" : "s"}`;
}

function percent(share) {
  if (share === null) return FEW;
  const value = 100 * share;
  return `${value > 0 && value < 10 ? Number(value.toFixed(1)) : Math.round(value)}%`;
}

function amount(value) {
  return value === null ? FEW : digits.format(value).replace("-", "−");
}

// Similarities and odds ratios: two decimals are what they are good for.
function ratio(value) {
  return value === null ? FEW : value >= 10 ? amount(value) : value.toFixed(2);
}

function lines(pairs, className = "lines") {
  return make(
    "dl",
    { class: className },
    pairs.map(([label, text]) => make("div", {}, make("dt", {}, label), make("dd", {}, text))),
  );
}

// A name such as age_between_60_69 may break after its underscores.
function breakable(name) {
  return name.split("_").flatMap((part, i) => (i === 0 ? [part] : ["_", make("wbr"), part]));
}

// A sign for each status: shape and word tell them apart, not colour.
const SIGNS = {
  accepted: "M3 8.5 6.5 12 13 4.5",
  rejected: "M4 4 12 12M12 4 4 12",
  merged: "M3 4 8 8.5 13 4M8 8.5V13",
  open: "M5 8H11",
};

function sign(status) {
  return draw(
    "svg",
    { class: "sign", viewBox: "0 0 16 16", "aria-hidden": "true" },
    draw("path", { d: SIGNS[status] }),
  );
}
