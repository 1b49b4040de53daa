// The review: what the reader decided, how it is kept in the browser, and the file it goes out and comes back in.

const NUMBERS = content.phenotypes.map((phenotype) => phenotype.number);
const TOTAL = content.review ? content.review.phenotypes : NUMBERS.length; // a page may show fewer than the model has
const LONGEST = { name: 200, comment: 5000, reviewer: 200 };
const LARGEST = 1_000_000 + 50_000 * TOTAL; // bytes; no honest review is near it
const STATUSES = ["open", "accepted", "rejected", "merged"];
const KEY = `phenotaste-review-${content.fingerprint}`;

class Refused extends Error {}

let review = null; // {reviewer, order, decisions: Map(number → {name, comment, status, merge_with})}
let savedAs = ""; // what the last file saved or loaded held
let keeps = true; // whether this browser keeps work between visits
const watchers = []; // told which phenotype changed, or null for all of them

const decision = (number) => review.decisions.get(number);
const decided = () => NUMBERS.filter((number) => decision(number).status !== "open").length;
const merging = (number) => NUMBERS.filter((other) => decision(other).merge_with === number);
const unsaved = () => essence(review) !== savedAs;

function titleOf(number) {
  const name = decision(number)?.name;
  return name ? `${number} · ${name}` : `Phenotype ${number}`;
}

function blank() {
  const all = Array.from({ length: TOTAL }, (_, i) => i + 1);
  const decisions = all.map((number) => {
    const shown = content.phenotypes.find((phenotype) => phenotype.number === number);
    return [number, { name: oneLine(shown?.name ?? ""), comment: "", status: "open", merge_with: null }];
  });
  return { reviewer: "", order: all, decisions: new Map(decisions) };
}

function record(state, date) {
  const decisions = [...state.decisions]
    .sort((a, b) => a[0] - b[0])
    .map(([phenotype, made]) => ({ phenotype, ...made }));
  return {
    format: "phenotaste-review",
    version: 1,
    model: content.fingerprint,
    phenotypes: TOTAL,
    reviewer: state.reviewer,
    date,
    decisions,
    order: state.order,
  };
}

const essence = (state) => JSON.stringify(record(state, ""));
const today = () => {
  const now = new Date();
  return [now.getFullYear(), now.getMonth() + 1, now.getDate()]
    .map((part) => String(part).padStart(2, "0"))
    .join("-");
};

// A phenotype and those it is merged with, one after the other; null where that never ends.
function chain(decisions, number) {
  const found = [];
  for (let at = number; !found.includes(at); at = decisions.get(at).merge_with) {
    found.push(at);
    if (decisions.get(at).status !== "merged") return found;
  }
  return null;
}

function change(number, changes) {
  Object.assign(decision(number), changes);
  told(number);
}

// The same decision again takes it back. Returns a sentence where nothing can be decided.
function decide(number, wanted) {
  const takes = merging(number);
  if (wanted === "rejected" && takes.length > 0) {
    const they = `${takes.map(titleOf).join(", ")} ${takes.length === 1 ? "is" : "are"}`;
    return `${they} merged with this one. Undo that before you reject it.`;
  }
  const status = decision(number).status === wanted ? "open" : wanted;
  for (const part of partsOf(number)) {
    Object.assign(
      decision(part),
      status === "rejected" ? { status, merge_with: null } : { status: "merged", merge_with: number },
    );
  }
  change(number, { status, merge_with: null });
  return null;
}

// Phenotypes of the model that a review had merged into this one before the page was made: they have no card, and
// share its fate.
function partsOf(number) {
  const { merged_from: made } = content.phenotypes.find((phenotype) => phenotype.number === number);
  return made.filter((part) => part !== number && !NUMBERS.includes(part));
}

// Phenotypes this one can be merged with: not a rejected one, and not one that is merged with it, directly or not.
function partners(number) {
  const free = (other) => !chain(review.decisions, other).includes(number);
  const chosen = decision(number).merge_with; // it may have no card
  const cards = NUMBERS.filter((other) => decision(other).status !== "rejected" && free(other));
  return chosen === null || cards.includes(chosen) ? cards : [...cards, chosen];
}

function told(number) {
  keep();
  watchers.forEach((watch) => watch(number));
}

function keep() {
  try {
    localStorage.setItem(KEY, JSON.stringify({ review: record(review, today()), saved: !unsaved() }));
    keeps = true;
  } catch {
    keeps = false;
  }
}

function replaceReview(state, saved) {
  review = state;
  savedAs = saved ? essence(state) : "";
  told(null);
}

// What this browser kept of the model's review, as text; null where there is nothing.
function keptText() {
  try {
    localStorage.setItem(`${KEY}-try`, "");
    localStorage.removeItem(`${KEY}-try`);
    return localStorage.getItem(KEY);
  } catch {
    keeps = false;
    return null;
  }
}

// Work kept here comes first, then a review that came with the page. Returns what the reader should be told.
function startReview() {
  const given = content.review ? parsed(content.review) : null; // checked when the page was made
  review = given ?? blank();
  savedAs = essence(review);
  const text = keptText();
  if (text === null) return null;
  try {
    const kept = JSON.parse(text);
    review = parsed(kept.review);
    savedAs = kept.saved === true ? essence(review) : "";
  } catch {
    return { text: "Work kept in this browser could not be read, and is not shown.", loud: true };
  }
  if (given === null || essence(given) === essence(review)) return null;
  return {
    text: "This is your work kept in this browser. The page came with another review.",
    button: "Use that one",
    run: () => replaceReview(given, true),
  };
}
