// The review: decisions, their storage in the browser, and the record that goes into the file.

const NUMBERS = content.phenotypes.map((phenotype) => phenotype.number);
const TOTAL = content.review ? content.review.phenotypes : NUMBERS.length; // a page may show fewer than the model has
const MAX_LENGTH = { name: 200, comment: 5000, reviewer: 200 };
const MAX_FILE_SIZE = 1_000_000 + 50_000 * TOTAL; // bytes; far more than any review needs
const STATUSES = ["open", "accepted", "rejected", "merged"];
// A page that starts from other reviews keeps its work apart from that of each reviewer.
const KEY = [
  `phenotaste-review-${content.fingerprint}`,
  ...(content.carried ? content.review.based_on.map((source) => source.review.slice(0, 12)) : []),
].join("-");

class InvalidReview extends Error {}

let review = null; // {reviewer, order, basedOn, decisions: Map(number → {name, comment, status, merge_with, sources})}
let savedAs = ""; // the last review saved to or loaded from a file
let startedFrom = ""; // the review that the page came with
let storageWorks = true; // whether this browser stores work between sessions
const listeners = []; // called with the number of the phenotype that changed, or null for all of them

const decision = (number) => review.decisions.get(number);
const decided = () => NUMBERS.filter((number) => decision(number).status !== "open").length;
const mergedInto = (number) => NUMBERS.filter((other) => decision(other).merge_with === number);
const unsaved = () => serialise(review) !== savedAs;

function titleOf(number) {
  const name = decision(number)?.name;
  return name ? `${number} · ${name}` : `Phenotype ${number}`;
}

function blank() {
  const all = Array.from({ length: TOTAL }, (_, i) => i + 1);
  const decisions = all.map((number) => {
    const shown = content.phenotypes.find((phenotype) => phenotype.number === number);
    const name = oneLine(shown?.name ?? "");
    return [number, { name, comment: "", status: "open", merge_with: null, sources: [] }];
  });
  return { reviewer: "", order: all, basedOn: [], decisions: new Map(decisions) };
}

function record(state, date) {
  const decisions = [...state.decisions]
    .sort((a, b) => a[0] - b[0])
    .map(([phenotype, decided]) => ({ phenotype, ...decided }));
  return {
    format: "phenotaste-review",
    version: 2,
    model: content.fingerprint,
    phenotypes: TOTAL,
    reviewer: state.reviewer,
    date,
    based_on: state.basedOn,
    decisions,
    order: state.order,
  };
}

const serialise = (state) => JSON.stringify(record(state, ""));
const today = () => {
  const now = new Date();
  return [now.getFullYear(), now.getMonth() + 1, now.getDate()]
    .map((part) => String(part).padStart(2, "0"))
    .join("-");
};

// A phenotype and those it is merged with, one after the other; null for a cycle.
function mergeChain(decisions, number) {
  const chain = [];
  for (let at = number; !chain.includes(at); at = decisions.get(at).merge_with) {
    chain.push(at);
    if (decisions.get(at).status !== "merged") return chain;
  }
  return null;
}

// A decision that is changed is the reviewer's own, no longer that of an earlier review.
function change(number, changes) {
  Object.assign(decision(number), { sources: [] }, changes);
  notifyChange(number);
}

// The same decision again undoes it. Returns an error message if the decision is not possible.
function decide(number, requested) {
  const merged = mergedInto(number);
  if (requested === "rejected" && merged.length > 0) return holdsMerged(merged);
  const status = decision(number).status === requested ? "open" : requested;
  for (const part of membersWithoutCard(number)) {
    Object.assign(
      decision(part),
      { sources: [] },
      status === "rejected" ? { status, merge_with: null } : { status: "merged", merge_with: number },
    );
  }
  change(number, { status, merge_with: null });
  return null;
}

function holdsMerged(merged) {
  const they = `${merged.map(titleOf).join(", ")} ${merged.length === 1 ? "is" : "are"}`;
  return `${they} merged with this one. Undo that before you reject it.`;
}

// Phenotypes of the model that an earlier review merged into this one: they have no card, and follow its decision.
function membersWithoutCard(number) {
  const { merged_from: members } = content.phenotypes.find((phenotype) => phenotype.number === number);
  return members.filter((part) => part !== number && !NUMBERS.includes(part));
}

// Phenotypes this one can be merged with: neither rejected, nor merged with it, directly or indirectly.
function mergeCandidates(number) {
  const free = (other) => !mergeChain(review.decisions, other).includes(number);
  const chosen = decision(number).merge_with; // it may have no card
  const cards = NUMBERS.filter((other) => decision(other).status !== "rejected" && free(other));
  return chosen === null || cards.includes(chosen) ? cards : [...cards, chosen];
}

function notifyChange(number) {
  store();
  listeners.forEach((listener) => listener(number));
}

function store() {
  try {
    localStorage.setItem(KEY, JSON.stringify({ review: record(review, today()), saved: !unsaved() }));
    storageWorks = true;
  } catch {
    storageWorks = false;
  }
}

function replaceReview(state, saved) {
  review = state;
  savedAs = saved ? serialise(state) : "";
  notifyChange(null);
}

// The stored review of this model, as text; null if there is none.
function storedText() {
  try {
    localStorage.setItem(`${KEY}-try`, "");
    localStorage.removeItem(`${KEY}-try`);
    return localStorage.getItem(KEY);
  } catch {
    storageWorks = false;
    return null;
  }
}

// Work stored in the browser comes first, then a review in the page. Returns a notice for the reader, or null.
function startReview() {
  const given = content.review ? parseReview(content.review) : null; // validated when the page was written
  review = given ?? blank();
  savedAs = startedFrom = serialise(review);
  const text = storedText();
  if (text === null) return null;
  try {
    const stored = JSON.parse(text);
    review = parseReview(stored.review);
    savedAs = stored.saved === true ? serialise(review) : "";
  } catch {
    return { text: "Work stored in this browser could not be read, and is not shown.", loud: true };
  }
  if (given === null || serialise(given) === serialise(review)) return null;
  return {
    text: "This is your work stored in this browser. The page came with another review.",
    button: "Use that one",
    run: () => replaceReview(given, true),
  };
}
