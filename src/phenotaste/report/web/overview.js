// The overview, the model card and the list of what was hidden.

function panel(title, ...children) {
  return make("section", { class: "panel" }, make("h3", {}, title), children);
}

// A point of the map: a link with its circle, and its number and name, which are drawn above all circles.
function mapMark(point, number, x, y, radius) {
  const name = draw("text", { class: "under", x, y: y + radius + 14, "text-anchor": "middle" });
  const title = draw("title");
  const link = draw(
    "a",
    { href: `#phenotype-${number}`, class: point.size === null ? "map-point few" : "map-point", click: jump },
    title,
    draw("circle", { cx: x, cy: y, r: radius }),
  );
  const figure = draw("text", { class: "figure", x, y: y + 5, "text-anchor": "middle" }, String(number));
  const update = () => {
    const given = decision(number).name;
    name.textContent = characterCount(given) > 22 ? `${truncate(given, 21)}…` : given;
    const patients = point.size === null ? WITHHELD : `in ${percent(point.size)} of patients`;
    title.textContent = `${titleOf(number)}: ${patients}`;
  };
  return { number, radius, link, texts: [figure, name], update };
}

// Distance shows similarity, and area shows prevalence.
function mapPanel(points) {
  const x = scale(0, 1, 62, 298);
  const y = scale(0, 1, 228, 32);
  const largest = Math.max(...points.map((point) => point.size ?? 0), 0.01);
  const marks = points.map((point, i) => {
    const radius = point.size === null ? 10 : 9 + 17 * Math.sqrt(point.size / largest);
    return mapMark(point, NUMBERS[i], x(point.x), y(point.y), radius);
  });
  listeners.push((number) =>
    marks.forEach((mark) => (number ?? mark.number) === mark.number && mark.update()),
  );
  const links = marks
    .slice()
    .sort((a, b) => b.radius - a.radius)
    .map((mark) => mark.link);
  const texts = marks.flatMap((mark) => (points.length <= 12 ? mark.texts : mark.texts.slice(0, 1)));
  const described = {
    class: "map",
    viewBox: "0 0 360 275",
    role: "group",
    "aria-label": "Map of the phenotypes",
  };
  return panel(
    "Map of the phenotypes",
    draw("svg", described, links, draw("g", { class: "labels", "aria-hidden": "true" }, texts)),
    make(
      "p",
      { class: "soft" },
      "Phenotypes near each other share codes. The larger the circle, the more patients have it. Choose one to go to its card.",
    ),
  );
}

// The objective over iterations.
function fitPanel(loss, outcome) {
  const box = { left: 62, right: 440, top: 8, bottom: 82 };
  const x = scale(1, loss.length, box.left, box.right - 10);
  const low = Math.min(...loss);
  const high = Math.max(...loss);
  const y = scale(low, high, box.bottom, box.top);
  const description = `From ${amount(high)} to ${amount(low)} in ${count(loss.length, "iteration")}.`;
  const drawn = draw(
    "svg",
    { class: "chart", viewBox: "0 0 440 108", role: "img", "aria-label": description },
    axes(x, y, ticks(1, loss.length, 5).filter(Number.isInteger), [low, high], box, null),
    draw("path", { class: "curve", d: path(loss.map((value, i) => [x(i + 1), y(value)])) }),
  );
  return panel(
    "The fit",
    drawn,
    make(
      "p",
      { class: "soft" },
      `What the model leaves unexplained, iteration by iteration. ${outcome.charAt(0).toUpperCase()}${outcome.slice(1)}`,
    ),
  );
}

function attritionRow(step, isFirst, largest) {
  const left = step.patients === null ? WITHHELD : integers.format(step.patients);
  const removed =
    step.removed === null
      ? `removed: ${WITHHELD}`
      : `${step.removed === 0 ? "none" : integers.format(step.removed)} removed`;
  const bar = make("span", { class: "track", "aria-hidden": "true" }, make("i"));
  bar.firstChild.style.width = `${(100 * (step.patients ?? 0)) / largest}%`;
  return make(
    "li",
    {},
    make("span", { class: "step" }, step.step),
    make("span", { class: step.patients === null ? "missing" : "left" }, left),
    step.patients === null ? null : bar,
    isFirst ? null : make("span", { class: "soft removed" }, removed),
  );
}

function attritionPanel(steps) {
  const largest = Math.max(...steps.map((step) => step.patients ?? 0), 1);
  const rows = steps.map((step, i) => attritionRow(step, i === 0, largest));
  return panel("How the patients were chosen", make("ol", { class: "attrition" }, rows));
}

function fillOverview() {
  const {
    figures,
    cohort,
    attrition,
    stability,
    map,
    loss = [],
    outcome = "",
    notes = [],
  } = content.overview;
  byId("notes").append(...notes.map((note) => make("p", { class: "warn" }, note)));
  byId("figures").append(
    ...figures.map(([label, text]) => make("div", {}, make("dt", {}, label), make("dd", {}, text))),
  );
  const panels = byId("panels");
  if (map.length > 0) panels.append(mapPanel(map));
  const others = make("div", { class: "stack" });
  if (attrition && attrition.length > 0) others.append(attritionPanel(attrition));
  if (cohort.length > 0) others.append(panel("The cohort", lines(cohort)));
  if (stability) others.append(panel("Stability", make("p", {}, stability.text), lines(stability.lines)));
  if (loss.length > 1) others.append(fitPanel(loss, outcome));
  if (others.children.length > 0) panels.append(others);
}

function fillHow() {
  const few = content.trusted
    ? []
    : [
        "Numbers of patients are rounded to multiples of 5, up or down at random, and percentages, odds and their " +
          "intervals are computed from rounded numbers. Extreme values are limited in means, which are rounded too. " +
          `“Withheld” replaces a figure about fewer than ${content.min_cell_size} patients, or hardly more: ` +
          "of those who have something or of those who do not. No patients at all are withheld as well.",
      ];
  const controls = [
    "Weights of 0.1 and more are shown first; “show more” opens the smaller ones.",
    "The slider brings up what is distinctive: codes that have more weight here than in the other phenotypes (×2.0: " +
      "twice as much as on average), even if their weight is not large.",
  ];
  const paragraphs = [
    "A weight is relative to the largest weight of any code in any phenotype, or, for facts about the patient, of any " +
      "fact.",
    "A phenotype is present in a patient if it makes up at least a tenth of what the model explains of the record, " +
      "and it leads if it makes up more than any other.",
    "An effect is a standardised difference: below 0.2 about the same, up to 0.5 slightly, up to 0.8 clearly, above that much.",
    ...(content.changes
      ? [
          "A phenotype is the same if the cosine of its definition with that of the last review is " +
            `${content.changes.same_from} or more, and has moved if it is ${content.changes.moved_from} or more, of a merged ` +
            "phenotype also with one of its parts. The shares " +
            "that changed are of the weights of all codes in visits that are shown, or of all facts about the patient.",
        ]
      : []),
    ...few,
    "The definitions describe the records they were found in. They are not diagnoses, and not a basis for treating a patient.",
  ];
  byId("how-text").append(
    ...controls.map((text) => make("p", { class: "on-screen" }, text)),
    ...paragraphs.map((text) => make("p", {}, text)),
  );
}

function fillModelCard() {
  byId("model-card").hidden = content.card.length === 0;
  byId("model-card-parts").append(
    ...content.card.map((part) =>
      panel(
        part.heading,
        part.text.map((text) => make("p", {}, text)),
        part.lines.length > 0 ? lines(part.lines) : null,
      ),
    ),
  );
}

function fillAudit() {
  const list = byId("audit-list");
  if (content.trusted) list.append(make("p", {}, "Nothing was hidden: disclosure control is off."));
  else if (content.audit.length === 0) list.append(make("p", {}, "Nothing had to be hidden."));
  else {
    const rows = content.audit.map((entry) =>
      make(
        "tr",
        {},
        [entry.where, entry.what, entry.reason].map((text) => make("td", {}, text)),
      ),
    );
    const head = make(
      "tr",
      {},
      ["Where", "What", "Why"].map((text) => make("th", { scope: "col" }, text)),
    );
    list.append(
      make(
        "details",
        {},
        make(
          "summary",
          {},
          `${integers.format(rows.length)} ${rows.length === 1 ? "figure was" : "figures were"} hidden to protect patients`,
        ),
        make(
          "div",
          { class: "wide" },
          make("table", { class: "audit" }, make("thead", {}, head), make("tbody", {}, rows)),
        ),
      ),
    );
  }
}
