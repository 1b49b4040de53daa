// Evidence on a phenotype: course, profile of its patients, stability, outcome, similar phenotypes.

// Without a cohort the page shows definitions only.
const HAS_PATIENTS =
  content.overview.cohort.length > 0 ||
  content.phenotypes.some(
    ({ prevalence, leading, course }) =>
      prevalence !== null || leading.patients !== null || course.visits !== null,
  );

const courseCharts = []; // functions that redraw them; one switch is for all cards
let unit = content.phenotypes.some((phenotype) => phenotype.course.visits) ? "visits" : "months";

function block(title, ...children) {
  return make("section", { class: "block" }, make("h4", {}, title), children);
}

function setUnit(chosen) {
  unit = chosen;
  courseCharts.forEach((paint) => paint());
}

function courseBlock(phenotype) {
  const figure = make("div", { class: "figure" });
  const choices = ["visits", "months"].map((value) => {
    const input = make("input", {
      type: "radio",
      name: `unit-${phenotype.number}`,
      value,
      change: () => setUnit(value),
    });
    return { value, input, label: make("label", {}, input, make("span", {}, value)) };
  });
  const paint = () => {
    const band = phenotype.course[unit];
    choices.forEach((choice) => {
      choice.input.checked = choice.value === unit;
    });
    const empty = unit === "months" && content.phenotypes.every((other) => other.course.months === null);
    const missing = empty ? "The dates of the visits are not known." : WITHHELD;
    figure.replaceChildren(
      band && band.x.length > 0 ? courseChart(band, unit) : make("p", { class: "missing" }, missing),
    );
  };
  courseCharts.push(paint);
  paint();
  const choice = make(
    "fieldset",
    { class: "switch" },
    make("legend", { class: "visually-hidden" }, "Course over visits or months, for every phenotype"),
    choices.map((option) => option.label),
  );
  const chart = make(
    "div",
    {},
    figure,
    make(
      "p",
      { class: "soft" },
      "Activity (score × course, in the data's own units) in the patients it leads in: median, and quartiles as a band, each the mean of 11 patients around it.",
    ),
  );
  const typical =
    phenotype.typical.length === 0
      ? null
      : make(
          "div",
          {},
          make("h5", {}, "Typical courses"),
          typicalCourses(phenotype.typical),
          make("p", { class: "soft" }, "Means over groups of patients, from first to last visit."),
        );
  const section = block("Course over time", choice, make("div", { class: "pair" }, chart, typical));
  section.classList.add("course");
  return section;
}

// Cohen's thresholds for a standardised difference.
function describeEffect(contrast) {
  const size = Math.abs(contrast.effect);
  if (size < 0.2) return "about the same";
  const direction =
    contrast.kind === "share"
      ? contrast.effect > 0
        ? "more often"
        : "less often"
      : contrast.effect > 0
        ? "higher"
        : "lower";
  return `${size < 0.5 ? "slightly" : size < 0.8 ? "clearly" : "much"} ${direction}`;
}

function profileRow(contrast) {
  const value = (number) => (contrast.kind === "share" ? percent(number) : amount(number));
  const known = contrast.effect !== null;
  const name = make("th", { scope: "row" }, breakable(contrast.feature));
  if (contrast.leading === null || contrast.rest === null)
    return make("tr", {}, name, make("td", { colspan: 4, class: "missing" }, WITHHELD));
  const figures = [contrast.leading, contrast.rest].map((number) =>
    make("td", { class: "figure" }, value(number)),
  );
  return make(
    "tr",
    {},
    name,
    figures,
    make("td", { class: "mark" }, known ? effectMark(contrast.effect) : null),
    make("td", { class: "words" }, known ? describeEffect(contrast) : ""),
  );
}

function profileBlock(phenotype) {
  const rows = phenotype.profile.map(profileRow);
  const hide = (limit) =>
    rows.forEach((row, i) => {
      row.classList.toggle("later", i >= limit);
    });
  const more = make(
    "button",
    {
      type: "button",
      class: "more",
      click: () => {
        const open = more.getAttribute("aria-expanded") === "true";
        hide(open ? 6 : Infinity);
        more.setAttribute("aria-expanded", String(!open));
        more.textContent = open ? `Show ${rows.length - 6} more` : "Show fewer";
      },
      "aria-expanded": "false",
    },
    `Show ${rows.length - 6} more`,
  );
  hide(6);
  const head = make(
    "tr",
    {},
    make("td", {}),
    make("th", { scope: "col" }, "here"),
    make("th", { scope: "col" }, "rest"),
    make("th", { scope: "col", class: "ends" }, make("span", {}, "less"), make("span", {}, "more")),
    make("td", {}),
  );
  return block(
    "Its patients compared with the rest",
    make("table", { class: "profile" }, make("thead", {}, head), make("tbody", {}, rows)),
    rows.length > 6 ? make("p", { class: "mores" }, more) : null,
  );
}

function outcomeBlock(link) {
  const known = link.odds_ratio !== null && link.low !== null && link.high !== null;
  const finding = !known
    ? WITHHELD
    : link.low > 1
      ? "more frequent with this phenotype"
      : link.high < 1
        ? "less frequent with this phenotype"
        : "no clear difference";
  const shares =
    link.leading === null && link.rest === null
      ? null
      : make("p", { class: "soft" }, `${percent(link.leading)} here, ${percent(link.rest)} in the rest`);
  return block(
    `Outcome: ${link.name}`,
    known ? forest(link) : null,
    make(
      "p",
      {},
      known ? make("b", {}, `Odds ratio ${ratio(link.odds_ratio)}`) : null,
      known ? ` (${ratio(link.low)} to ${ratio(link.high)}): ` : "",
      make("span", { class: known ? "" : "missing" }, finding),
    ),
    shares,
  );
}

const foundIn = (runs) => `Found in ${runs.reproduced} of ${runs.comparisons}`;
const foundAgain = (runs) => `Found again in ${percent(runs.share)} of`;

function stabilityBlock(stability) {
  const describe = (runs, what, finding) =>
    make(
      "div",
      { class: "runs" },
      strip(runs),
      make(
        "p",
        {},
        make("b", {}, finding(runs)),
        ` ${what}; similarity ${ratio(runs.median)} (${ratio(runs.low)} to ${ratio(runs.high)})`,
      ),
    );
  return block(
    "Stability",
    stability.halves ? describe(stability.halves, "halves of the patients", foundIn) : null,
    stability.starts ? describe(stability.starts, "other starts", foundAgain) : null,
    stability.bootstrap ? describe(stability.bootstrap, "resampled cohorts", foundAgain) : null,
  );
}

function similarBlock(phenotype, links) {
  const items = phenotype.similar.map((other) => {
    const link = make("a", { href: `#phenotype-${other.phenotype}`, click: jump });
    links.push([other.phenotype, link]);
    return make("li", {}, link, make("span", { class: "soft" }, ` similarity ${ratio(other.cosine)}`));
  });
  return block("Most easily confused with", make("ul", { class: "similar" }, items));
}

// The course and the profile are next to the bars, the other blocks in a row below.
function evidence(phenotype) {
  const blocks = HAS_PATIENTS && content.courses ? [courseBlock(phenotype)] : [];
  if (phenotype.profile.length > 0) blocks.push(profileBlock(phenotype));
  return make("div", { class: "evidence" }, blocks);
}

function furtherEvidence(phenotype, links) {
  const { outcome, stability, similar } = phenotype;
  const blocks = [];
  if (stability && (stability.halves || stability.starts || stability.bootstrap)) {
    blocks.push(stabilityBlock(stability));
  }
  if (outcome) blocks.push(outcomeBlock(outcome));
  if (similar.length > 0) blocks.push(similarBlock(phenotype, links));
  return make("div", { class: "further" }, blocks);
}
