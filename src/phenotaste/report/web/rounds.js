// What changed since the last review, and what several reviewers decided: on each card, and in a summary at the top.

const dates = new Intl.DateTimeFormat("en-GB", { dateStyle: "long", timeZone: "UTC" });
const DECIDED = { accepted: "accepted", rejected: "rejected", merged: "merged", open: "left open" };
const DISPUTED = Boolean(content.agreement);
const CHANGED = Boolean(content.changes);

const day = (date) => dates.format(new Date(`${date}T00:00:00Z`));
const quoted = (name) => (name ? `“${name}”` : null);
const phenotypeOf = (number) => content.phenotypes.find((phenotype) => phenotype.number === number);

function authorsOf(authors) {
  return authors.map(({ reviewer, date }) => `${reviewer}, ${day(date)}`).join(", and ");
}

// “accepted as “Gout” by Ann, 31 January 2026”
function decisionInWords({ status, name, authors }) {
  const verb = status === "merged" ? "merged into" : name ? `${DECIDED[status]} as` : DECIDED[status];
  const by = authors.length > 0 ? ` by ${authorsOf(authors)}` : "";
  return `${[verb, quoted(name) ?? (status === "merged" ? "another" : null)].filter(Boolean).join(" ")}${by}`;
}

function inWords(numbers) {
  return numbers.length === 1 ? String(numbers[0]) : `${numbers.slice(0, -1).join(", ")} and ${numbers.at(-1)}`;
}

// What it was: “phenotypes 1 and 3 merged, accepted as “Gout” by Ann, 31 January 2026”.
function earlierInWords(earlier) {
  const { number, merged_from: members } = earlier;
  const which = members.length > 0 ? `phenotypes ${inWords(members)} merged` : `phenotype ${number}`;
  return `${which}, ${decisionInWords(earlier)}`;
}

function changeInWords({ kind, similarity, earlier }) {
  const alike = `similarity ${ratio(similarity)}`;
  if (kind === "new")
    return earlier
      ? `New. Most similar in the last review (${alike}): ${earlierInWords(earlier)}.`
      : "New: nothing in the last review is similar.";
  if (earlier.status !== "rejected")
    return kind === "same"
      ? `The same as in the last review: ${earlierInWords(earlier)}.`
      : `Moved since the last review (${alike}): it was ${earlierInWords(earlier)}.`;
  const back = kind === "same" ? "Came back unchanged" : `Came back, and has moved (${alike})`;
  return `${back}: it was ${decisionInWords(earlier)}, in the last review (phenotype ${earlier.number}).`;
}

// A word beside the number of a card: what a reader should know before looking at it.
function tagOf(phenotype) {
  if (phenotype.disputed) return "disagreement";
  const { change } = phenotype;
  if (!change) return null;
  return change.earlier?.status === "rejected" && change.kind !== "new" ? "came back" : change.kind;
}

function makeTag(phenotype) {
  const text = tagOf(phenotype);
  return text === null ? null : make("span", { class: "tag", "data-tag": text }, text);
}

// A code's share of the weights then and now, on one line from 0 to the largest of them.
function weightMark({ kind, before, now }, largest) {
  const x = scale(0, largest || 1, 5, 95);
  return draw(
    "svg",
    { class: `shift ${kind}`, viewBox: "0 0 100 12", "aria-hidden": "true" },
    draw("line", { class: "axis", x1: 5, x2: 95, y1: 6, y2: 6 }),
    draw("line", { class: "range", x1: x(before), x2: x(now), y1: 6, y2: 6 }),
    draw("circle", { class: "before", cx: x(before), cy: 6, r: 3.4 }),
    draw("circle", { class: "now", cx: x(now), cy: 6, r: 3.4 }),
  );
}

function shiftList(title, codes, largest) {
  if (codes.length === 0) return null;
  return make(
    "section",
    {},
    make("h5", {}, title),
    make(
      "ul",
      { class: "shifts" },
      codes.map((code) =>
        make(
          "li",
          {},
          make("span", { class: "name" }, breakable(code.name)),
          weightMark(code, largest),
          make("span", { class: "weight" }, `${percent(code.before)} → ${percent(code.now)}`),
        ),
      ),
    ),
  );
}

function changeBlock({ change }) {
  if (!change) return null;
  const { kind, earlier, gained = [], lost = [] } = change;
  const largest = Math.max(0, ...[...gained, ...lost].flatMap(({ before, now }) => [before, now]));
  const lists = [
    shiftList("Larger share of the weights now", gained, largest),
    shiftList("Smaller share of the weights now", lost, largest),
  ].filter(Boolean);
  return make(
    "section",
    { class: "since", "data-kind": kind },
    make("p", {}, changeInWords(change)),
    kind === "moved" && earlier.comment ? make("p", { class: "words" }, `Comment then: ${earlier.comment}`) : null,
    lists.length > 0 ? make("div", { class: "shifted" }, lists) : null,
    kind === "moved" && lists.length === 0
      ? make("p", {}, "No code that may be shown changed by much.")
      : null,
  );
}

// Takes over what one reviewer decided. Returns an error message if it is not possible.
function takeOver(number, { status, name, comment, merge_with: target }) {
  if (status === "merged" && !mergeCandidates(number).includes(target))
    return `${titleOf(target)} is rejected here, or merged with this one: it cannot be merged with it.`;
  const held = mergedInto(number);
  if (status === "rejected" && held.length > 0) return holdsMerged(held);
  change(number, { status, name, comment, merge_with: target });
  return null;
}

function opinionBlock(phenotype, card) {
  const { opinions = [] } = phenotype;
  if (opinions.length === 0) return null;
  const column = (opinion) => {
    const { author, status, name, comment, merged_with: others } = opinion;
    const verdict =
      others.length === 0
        ? DECIDED[status]
        : `${status === "merged" ? "" : `${DECIDED[status]}, `}merged with ${inWords(others)}`;
    return make(
      "li",
      {},
      make("p", { class: "who" }, `${author.reviewer}, ${day(author.date)}`),
      make("p", { class: "verdict" }, icon(status), make("span", {}, verdict)),
      make("p", { class: name ? "given" : "given missing" }, name || "no name"),
      comment ? make("p", { class: "words" }, comment) : null,
      make(
        "button",
        {
          type: "button",
          class: "take",
          "aria-label": `Decide on phenotype ${phenotype.number} as ${author.reviewer}`,
          click: () => card.showError(takeOver(phenotype.number, opinion)),
          blur: () => card.showError(null),
        },
        "Decide like this",
      ),
    );
  };
  return make(
    "section",
    { class: "opinions" },
    make("h4", {}, phenotype.disputed ? "The reviewers disagree" : "The reviewers agree"),
    make("ul", {}, opinions.map(column)),
  );
}

// What needs a look first: disagreements, what moved, came back or is new, and then what is still open.
function attention(number) {
  const { disputed = false, change, status } = phenotypeOf(number);
  if (disputed || (change && change.kind !== "same")) return 0;
  return status === "open" ? 1 : 2;
}

function summaryList(title, phenotypes, links, empty) {
  const items = phenotypes.map(({ number }) => {
    const link = make("a", { href: `#phenotype-${number}`, click: jump });
    links.push([number, link]);
    return make("li", {}, link);
  });
  return make(
    "section",
    { class: "panel" },
    make("h3", {}, `${title} (${items.length})`),
    items.length > 0 ? make("ul", {}, items) : make("p", { class: "soft" }, empty),
  );
}

function goneItem({ earlier, codes }) {
  const title = earlier.name ? `${earlier.number} · ${earlier.name}` : `Phenotype ${earlier.number}`;
  return make(
    "li",
    {},
    make("span", {}, title),
    make("span", { class: "soft" }, `, ${DECIDED[earlier.status]}`),
    make("p", { class: "soft" }, codes.length > 0 ? codes.join("; ") : "no code that may be shown"),
  );
}

function fillChanges(links) {
  const { reviewer, date, model, gone } = content.changes;
  const of = (kind) => content.phenotypes.filter(({ change }) => change.kind === kind);
  const carried = content.phenotypes.filter(({ change, status }) => change.kind === "same" && status !== "open");
  const left = content.phenotypes.length - carried.length;
  byId("since-heading").textContent = "Since the last review";
  byId("since-text").append(
    make(
      "p",
      {},
      `${reviewer || "A reviewer"} reviewed model ${model.slice(0, 12)} on ${day(date)}. Of the ` +
        `${count(content.phenotypes.length, "phenotype")} now, ${carried.length} ${carried.length === 1 ? "is" : "are"} the same and ` +
        `already decided, which you can still change; ${left} ${left === 1 ? "is" : "are"} to be decided.`,
    ),
  );
  byId("since-lists").append(
    summaryList("Same", of("same"), links, "None."),
    summaryList("Moved", of("moved"), links, "None."),
    summaryList("New", of("new"), links, "None."),
    make(
      "section",
      { class: "panel gone" },
      make("h3", {}, `Gone (${gone.length})`),
      gone.length > 0 ? make("ul", {}, gone.map(goneItem)) : make("p", { class: "soft" }, "None."),
    ),
  );
}

function fillAgreement(links) {
  const disputed = content.phenotypes.filter((phenotype) => phenotype.disputed);
  byId("since-heading").textContent = "What the reviewers decided";
  byId("since-text").append(
    make("p", {}, `${content.agreement} Names do not count in this.`),
    make(
      "p",
      {},
      "What they agree on is already decided here; you can still change that. Please decide the rest.",
    ),
  );
  byId("since-lists").append(
    summaryList("They disagree, in the verdict or the name", disputed, links, "Nowhere."),
  );
}

function fillRounds() {
  byId("since").hidden = !(CHANGED || DISPUTED);
  if (byId("since").hidden) return;
  const links = [];
  if (CHANGED) fillChanges(links);
  else fillAgreement(links);
  listeners.push(() => {
    for (const [number, link] of links) link.textContent = titleOf(number);
  });
  const text = CHANGED ? "what changed first" : "disagreements first";
  byId("order").prepend(make("option", { value: "attention" }, text));
  byId("order").value = "attention";
}
