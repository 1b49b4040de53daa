// Relevance of features: λ·log p(f|r) + (1−λ)·log lift, lift = p(f|r)/p(f), from most weighted (λ = 1) to most distinctive.

const MIN_WEIGHT = 0.1; // of the bars shown first, as in the paper's tables
const MIN_RANKED_WEIGHT = 0.02; // smaller weights always come last: their lift means little

const GROUPS = [
  ["diagnosis", "Diagnoses"],
  ["medication", "Medications"],
  ["procedure", "Procedures"],
  ["other", "Other codes"],
];

// The weight of each phenotype in p(f): its prevalence, or the same for all if one of them is hidden.
function phenotypeWeights() {
  const known = content.phenotypes.map((phenotype) => phenotype.prevalence);
  const total = known.reduce((sum, share) => sum + (share ?? 0), 0);
  return known.includes(null) || total === 0
    ? known.map(() => 1 / known.length)
    : known.map((share) => share / total);
}

function expectedShares(kind) {
  const expected = new Float64Array(content.features[kind].length);
  const weights = phenotypeWeights();
  content.phenotypes.forEach((phenotype, r) => {
    const mass = phenotype.mass[kind];
    for (const [feature, weight] of phenotype[kind])
      if (mass > 0) expected[feature] += (weights[r] * weight) / mass;
  });
  return expected;
}

const expected = { temporal: expectedShares("temporal"), static: expectedShares("static") };

// The features of one phenotype, with their lift.
function featureRows(phenotype, kind) {
  const mass = phenotype.mass[kind];
  return phenotype[kind].map(([feature, weight]) => {
    const p = mass > 0 ? weight / mass : 0;
    const lift = expected[kind][feature] > 0 ? p / expected[kind][feature] : 1;
    return {
      ...content.features[kind][feature],
      here: kind === "static" ? (phenotype.rates[feature] ?? null) : null,
      weight,
      lift,
      logP: Math.log(p),
      logLift: Math.log(lift),
    };
  });
}

function ranked(rows, lambda) {
  const scores = new Map();
  for (const row of rows) {
    scores.set(row, lambda * row.logP + (1 - lambda) * row.logLift + (row.weight >= MIN_RANKED_WEIGHT ? 1e6 : 0));
  }
  return rows.slice().sort((a, b) => scores.get(b) - scores.get(a) || b.weight - a.weight);
}
