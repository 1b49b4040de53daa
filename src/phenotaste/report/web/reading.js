// Reading a review file: every part is checked, and what is wrong is refused with a sentence. Strings stay text.

const PARTS = ["format", "version", "model", "phenotypes", "reviewer", "date", "decisions", "order"];
const DECISION_PARTS = ["phenotype", "name", "comment", "status", "merge_with"];
const lengthOf = (text) => [...text].length; // characters, as the reader in Python counts them
const isRecord = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isNumber = (value) => Number.isInteger(value) && value >= 1 && value <= TOTAL;

function need(holds, sentence) {
  if (!holds) throw new Refused(sentence);
}

function onlyParts(value, parts, what) {
  need(isRecord(value), `${what} is not a record.`);
  need(
    Object.keys(value).every((key) => parts.includes(key)),
    `${what} has a part that is not known here.`,
  );
  need(
    parts.every((key) => Object.hasOwn(value, key)),
    `${what} lacks a part.`,
  );
}

function parsed(value) {
  need(isRecord(value) && value.format === "phenotaste-review", "This is not a review saved by phenotaste.");
  need(value.version === 1, "This review was saved by a newer phenotaste.");
  need(
    value.model === content.fingerprint,
    "This review belongs to another model: its phenotypes are not the ones on this page.",
  );
  onlyParts(value, PARTS, "The review");
  need(value.phenotypes === TOTAL, `The review should have ${TOTAL} phenotypes.`);
  need(
    typeof value.reviewer === "string" && lengthOf(value.reviewer) <= LONGEST.reviewer,
    "The reviewer's name is missing or too long.",
  );
  need(
    typeof value.date === "string" && /^\d{4}-\d{2}-\d{2}$/.test(value.date),
    "The date of the review is not a date.",
  );
  need(
    Array.isArray(value.decisions) && value.decisions.length === TOTAL,
    `The review should have ${TOTAL} decisions.`,
  );
  const decisions = new Map(value.decisions.map(parsedDecision));
  need(decisions.size === TOTAL, "A phenotype has two decisions.");
  checkMerges(decisions);
  need(
    Array.isArray(value.order) &&
      value.order.every(isNumber) &&
      new Set(value.order).size === value.order.length,
    "The order of the phenotypes is not a list of their numbers.",
  );
  const left = [...decisions.keys()].filter((number) => !value.order.includes(number)).sort((a, b) => a - b);
  const sorted = new Map([...decisions].sort((a, b) => a[0] - b[0]));
  return { reviewer: oneLine(value.reviewer), order: [...value.order, ...left], decisions: sorted };
}

function parsedDecision(made) {
  onlyParts(made, DECISION_PARTS, "A decision");
  need(isNumber(made.phenotype), "A decision is about a phenotype that is not there.");
  const which = `The decision on phenotype ${made.phenotype}`;
  need(
    typeof made.name === "string" && lengthOf(made.name) <= LONGEST.name,
    `${which} has a name that is missing or too long.`,
  );
  need(
    typeof made.comment === "string" && lengthOf(made.comment) <= LONGEST.comment,
    `${which} has a comment that is missing or too long.`,
  );
  need(STATUSES.includes(made.status), `${which} has a status that is not known here.`);
  const merged = made.status === "merged";
  need(
    merged ? isNumber(made.merge_with) : made.merge_with === null,
    `${which} does not say rightly what it is merged with.`,
  );
  return [
    made.phenotype,
    {
      name: oneLine(made.name),
      comment: plain(made.comment),
      status: made.status,
      merge_with: made.merge_with,
    },
  ];
}

function checkMerges(decisions) {
  for (const [number, made] of decisions) {
    if (made.status !== "merged") continue;
    const found = chain(decisions, number);
    need(found !== null, `Phenotype ${number} is merged in a circle.`);
    need(
      decisions.get(found.at(-1)).status !== "rejected",
      `Phenotype ${number} is merged with a rejected one.`,
    );
  }
}

async function loadFile(file) {
  need(file.size <= LARGEST, "This file is too large for a review, and was not read.");
  let value;
  try {
    value = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer()));
  } catch {
    throw new Refused("This file is damaged, or is not a review.");
  }
  return parsed(value);
}

function saveFile() {
  const text = `${JSON.stringify(record(review, today()), null, 1)}\n`;
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = make("a", { href: address, download: "review.json", hidden: true });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
  savedAs = essence(review);
  told(null);
}
