// Bars of the weights of one group of features: large ones first, others on demand, matches of a search always.

const MAX_BARS = 12; // before "show more"
const STEP = 25;

const view = { lambda: 1, search: [] };

function countLarge(rows) {
  return rows.filter((row) => row.weight >= MIN_WEIGHT).length;
}

function matches(name) {
  const lower = name.toLowerCase();
  return view.search.length > 0 && view.search.every((word) => lower.includes(word));
}

// A fact among the patients who have the phenotype, against all patients of the fit.
function describeRates({ here, rate, numeric }) {
  if (here === null || rate === null || rate === undefined) return "";
  if (numeric) return `mean ${amount(here)}, ${amount(rate)} in all patients`;
  const lift = rate > 0 ? ` (×${ratio(here / rate)})` : "";
  return `${percent(here)} of those who have it, ${percent(rate)} of all${lift}`;
}

// `first` bars are shown from the start. Elements are reused when the order changes.
function barList(title, kind, rows, first) {
  const list = make("ul", { class: `bars ${kind}` });
  const more = make("button", {
    type: "button",
    class: "more",
    click: () => {
      extra += STEP;
      paint();
    },
  });
  const fewer = make(
    "button",
    {
      type: "button",
      class: "more",
      click: () => {
        extra = 0;
        paint();
        more.focus();
      },
    },
    "Show fewer",
  );
  const none = make("p", { class: "soft" });
  const pool = [];
  let extra = 0;

  function row(i) {
    if (!pool[i]) {
      const parts = {
        name: make("span", { class: "name" }),
        bar: make("i"),
        weight: make("span", { class: "weight" }),
        lift: make("span", { class: "lift" }),
        rates: make("span", { class: "rates soft" }),
      };
      parts.item = make(
        "li",
        {},
        parts.name,
        make("span", { class: "track", "aria-hidden": "true" }, parts.bar),
        parts.weight,
        parts.lift,
        parts.rates,
      );
      pool[i] = parts;
    }
    return pool[i];
  }

  function paint() {
    const order = ranked(rows, view.lambda);
    const open = Math.min(first + extra, order.length);
    const shown = order.slice(0, open).concat(
      order
        .slice(open)
        .filter((entry) => matches(entry.name))
        .slice(0, STEP),
    );
    shown.forEach((entry, i) => {
      const parts = row(i);
      parts.name.replaceChildren(...breakable(entry.name));
      parts.bar.style.width = `${(100 * entry.weight).toFixed(1)}%`;
      parts.weight.textContent = entry.weight.toFixed(2);
      parts.lift.textContent =
        view.lambda < 1 ? `×${entry.lift >= 10 ? Math.round(entry.lift) : entry.lift.toFixed(1)}` : "";
      parts.rates.textContent = describeRates(entry);
      parts.item.className = matches(entry.name) ? "match" : "";
      if (parts.item.parentNode !== list) list.append(parts.item);
    });
    for (let i = shown.length; i < pool.length; i++) pool[i].item.remove();
    const left = order.length - open;
    const next = left > STEP ? `${STEP} of ${integers.format(left)}` : String(left);
    more.textContent = `Show ${next} ${open === 0 ? "smaller" : "more"}`;
    more.hidden = left === 0;
    fewer.hidden = extra === 0;
    none.hidden = shown.length > 0;
    none.textContent = `No weight of ${MIN_WEIGHT} or more.`;
  }

  const element = make(
    "section",
    { class: "group" },
    title ? make("h5", {}, title) : null,
    list,
    make("div", { class: "mores" }, none, more, fewer),
  );
  return { element, paint };
}

// All bars of a phenotype: groups of temporal features, then static features.
function definition(phenotype) {
  const temporal = featureRows(phenotype, "temporal");
  const fixed = featureRows(phenotype, "static");
  const lists = { temporal: [], static: [] };
  const first = (rows, all) =>
    Math.min(MAX_BARS, countLarge(all) > 0 ? countLarge(rows) : Math.min(5, rows.length));
  for (const [group, title] of GROUPS) {
    const rows = temporal.filter((entry) => entry.group === group);
    if (rows.length > 0) lists.temporal.push(barList(title, "temporal", rows, first(rows, temporal)));
  }
  if (fixed.length > 0) lists.static.push(barList(null, "static", fixed, first(fixed, fixed)));
  const part = (kind, title, empty) =>
    make(
      "section",
      { class: `part ${kind}` },
      make("h4", {}, title),
      lists[kind].length > 0 ? lists[kind].map((list) => list.element) : make("p", { class: "soft" }, empty),
    );
  const element = make(
    "div",
    { class: "definition" },
    part("temporal", `In ${content.codes_in}`, "There is no code that may be shown."),
  );
  if (content.features.static.length > 0)
    element.append(part("static", "About the patient", "There is no fact that may be shown."));
  // A class on each card, because one on the page would lay out all of it again.
  const paint = () => {
    element.classList.toggle("distinctive", view.lambda < 1);
    all.forEach((list) => list.paint());
  };
  const all = [...lists.temporal, ...lists.static];
  const rows = [...temporal, ...fixed];
  return {
    element,
    paint,
    has: () => rows.some((entry) => entry.weight >= 0.01 && matches(entry.name)),
  };
}
