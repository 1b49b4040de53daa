// Reading and writing review files: every field is validated, and an invalid file is refused with a message.

const FIELDS = ["format", "version", "model", "phenotypes", "reviewer", "date", "decisions", "order"];
const DECISION_FIELDS = ["phenotype", "name", "comment", "status", "merge_with"];
const SOURCE_FIELDS = ["reviewer", "date", "model", "review"];
const MAX_SOURCES = 100;
const characterCount = (text) => [...text].length; // code points, as Python counts them
const isRecord = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isNumber = (value) => Number.isInteger(value) && value >= 1 && value <= TOTAL;

function check(condition, message) {
  if (!condition) throw new InvalidReview(message);
}

function checkFields(value, fields, what) {
  check(isRecord(value), `${what} is not a record.`);
  check(
    Object.keys(value).every((key) => fields.includes(key)),
    `${what} has an unknown field.`,
  );
  check(
    fields.every((key) => Object.hasOwn(value, key)),
    `${what} lacks a field.`,
  );
}

const isDate = (value) => typeof value === "string" && /^\d{4}-\d{2}-\d{2}$/.test(value);
const isDigest = (value) => typeof value === "string" && /^[0-9a-f]{64}$/.test(value);

// Numbers from 1 up to a limit, each once.
const areNumbers = (value, limit) =>
  Array.isArray(value) &&
  value.every((number) => Number.isInteger(number) && number >= 1 && number <= limit) &&
  new Set(value).size === value.length;

// Files of version 1 have neither earlier reviews nor sources.
function parseReview(value) {
  check(isRecord(value) && value.format === "phenotaste-review", "This is not a review saved by phenotaste.");
  check([1, 2].includes(value.version), "This review was saved by a newer phenotaste.");
  const first = value.version === 1;
  check(
    value.model === content.fingerprint,
    "This review belongs to another model: its phenotypes are not the ones on this page.",
  );
  checkFields(value, first ? FIELDS : [...FIELDS, "based_on"], "The review");
  check(value.phenotypes === TOTAL, `The review should have ${TOTAL} phenotypes.`);
  check(
    typeof value.reviewer === "string" && characterCount(value.reviewer) <= MAX_LENGTH.reviewer,
    "The reviewer's name is missing or too long.",
  );
  check(isDate(value.date), "The date of the review is not a date.");
  const basedOn = first ? [] : value.based_on;
  check(
    Array.isArray(basedOn) && basedOn.length <= MAX_SOURCES,
    "The reviews that this one is based on are not a list.",
  );
  check(
    Array.isArray(value.decisions) && value.decisions.length === TOTAL,
    `The review should have ${TOTAL} decisions.`,
  );
  const sources = basedOn.map(parseSource);
  const decisions = new Map(value.decisions.map((item) => parseDecision(item, first ? null : sources.length)));
  check(decisions.size === TOTAL, "A phenotype has two decisions.");
  checkMerges(decisions);
  check(
    areNumbers(value.order, TOTAL),
    "The order of the phenotypes is not a list of their numbers.",
  );
  const left = [...decisions.keys()].filter((number) => !value.order.includes(number)).sort((a, b) => a - b);
  const sorted = new Map([...decisions].sort((a, b) => a[0] - b[0]));
  return { reviewer: oneLine(value.reviewer), order: [...value.order, ...left], basedOn: sources, decisions: sorted };
}

function parseSource(item) {
  checkFields(item, SOURCE_FIELDS, "A review that this one is based on");
  check(
    typeof item.reviewer === "string" &&
      characterCount(item.reviewer) <= MAX_LENGTH.reviewer &&
      isDate(item.date) &&
      isDigest(item.model) &&
      isDigest(item.review),
    "A review that this one is based on has an invalid reviewer, date, model or digest.",
  );
  return { ...item };
}

function parseDecision(item, sourceCount) {
  checkFields(item, sourceCount === null ? DECISION_FIELDS : [...DECISION_FIELDS, "sources"], "A decision");
  check(isNumber(item.phenotype), "A decision is about a phenotype that does not exist.");
  const which = `The decision on phenotype ${item.phenotype}`;
  check(
    typeof item.name === "string" && characterCount(item.name) <= MAX_LENGTH.name,
    `${which} has a name that is missing or too long.`,
  );
  check(
    typeof item.comment === "string" && characterCount(item.comment) <= MAX_LENGTH.comment,
    `${which} has a comment that is missing or too long.`,
  );
  check(STATUSES.includes(item.status), `${which} has an unknown status.`);
  const merged = item.status === "merged";
  check(
    merged ? isNumber(item.merge_with) : item.merge_with === null,
    `${which} has an invalid phenotype to merge with.`,
  );
  const sources = sourceCount === null ? [] : item.sources;
  check(areNumbers(sources, sourceCount ?? 0), `${which} has sources that the review does not list.`);
  return [
    item.phenotype,
    {
      name: oneLine(item.name),
      comment: sanitise(item.comment),
      status: item.status,
      merge_with: item.merge_with,
      sources: [...sources],
    },
  ];
}

function checkMerges(decisions) {
  for (const [number, item] of decisions) {
    if (item.status !== "merged") continue;
    const chain = mergeChain(decisions, number);
    check(chain !== null, `Phenotype ${number} is merged in a circle.`);
    check(
      decisions.get(chain.at(-1)).status !== "rejected",
      `Phenotype ${number} is merged with a rejected one.`,
    );
  }
}

async function loadFile(file) {
  check(file.size <= MAX_FILE_SIZE, "This file is too large for a review.");
  let value;
  try {
    value = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer()));
  } catch {
    throw new InvalidReview("This file is damaged, or is not a review.");
  }
  return parseReview(value);
}

function saveFile() {
  const text = `${JSON.stringify(record(review, today()), null, 1)}\n`;
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = make("a", { href: address, download: "review.json", hidden: true });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
  savedAs = serialise(review);
  notifyChange(null);
}
