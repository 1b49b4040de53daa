// Weighted bars of one group of features: the heavy ones first, the rest on demand, matches of a search always.

const MOST = 12; // bars before "show more"
const STEP = 25;

const view = { lambda: 1, search: [] };

function heavyCount(rows) {
  return rows.filter((row) => row.weight >= HEAVY).length;
}

function matches(name) {
  const low = name.toLowerCase();
  return view.search.length > 0 && view.search.every((word) => low.includes(word));
}

// `first` bars are open from the start. Rows are reused when the order changes: only their text and length change.
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
        times: make("span", { class: "times" }),
      };
      parts.item = make(
        "li",
        {},
        parts.name,
        make("span", { class: "rail", "aria-hidden": "true" }, parts.bar),
        parts.weight,
        parts.times,
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
      parts.times.textContent =
        view.lambda < 1 ? `×${entry.times >= 10 ? Math.round(entry.times) : entry.times.toFixed(1)}` : "";
      parts.item.className = matches(entry.name) ? "match" : "";
      if (parts.item.parentNode !== list) list.append(parts.item);
    });
    for (let i = shown.length; i < pool.length; i++) pool[i].item.remove();
    const left = order.length - open;
    const next = left > STEP ? `${STEP} of ${integers.format(left)}` : String(left);
    more.textContent = `Show ${next} ${open === 0 ? "lighter" : "more"}`;
    more.hidden = left === 0;
    fewer.hidden = extra === 0;
    none.hidden = shown.length > 0;
    none.textContent = `None weighs ${HEAVY} or more.`;
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

// All bars of a phenotype: the groups of its temporal features, and its static ones.
function definition(phenotype) {
  const temporal = entries(phenotype, "temporal");
  const fixed = entries(phenotype, "static");
  const lists = { temporal: [], static: [] };
  const first = (rows, all) =>
    Math.min(MOST, heavyCount(all) > 0 ? heavyCount(rows) : Math.min(5, rows.length));
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
    part("temporal", "In visits", "No code that may be shown."),
  );
  if (content.features.static.length > 0)
    element.append(part("static", "About the patient", "No fact that may be shown."));
  // Told card by card: a class on the whole page would lay all of it out again.
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
