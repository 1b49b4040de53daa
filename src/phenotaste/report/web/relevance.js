// Which features tell a phenotype: λ·log p(f|r) + (1−λ)·log(p(f|r)/p(f)), from most weighted (λ = 1) to most distinctive.

const HEAVY = 0.1; // shown first, as in the paper's tables
const FAINT = 0.02; // lighter ones never overtake: next to nothing is easily distinctive

const GROUPS = [
  ["diagnosis", "Diagnoses"],
  ["medication", "Medications"],
  ["procedure", "Procedures"],
  ["other", "Other codes"],
];

// Phenotypes weigh by prevalence, or alike where one of them is hidden.
function shares() {
  const known = content.phenotypes.map((phenotype) => phenotype.prevalence);
  const total = known.reduce((sum, share) => sum + (share ?? 0), 0);
  return known.includes(null) || total === 0
    ? known.map(() => 1 / known.length)
    : known.map((share) => share / total);
}

function overall(kind) {
  const expected = new Float64Array(content.features[kind].length);
  const weights = shares();
  content.phenotypes.forEach((phenotype, r) => {
    const mass = phenotype.mass[kind];
    for (const [feature, weight] of phenotype[kind])
      if (mass > 0) expected[feature] += (weights[r] * weight) / mass;
  });
  return expected;
}

const expected = { temporal: overall("temporal"), static: overall("static") };

// The features of one phenotype with what ranking needs.
function entries(phenotype, kind) {
  const mass = phenotype.mass[kind];
  return phenotype[kind].map(([feature, weight]) => {
    const p = mass > 0 ? weight / mass : 0;
    const times = expected[kind][feature] > 0 ? p / expected[kind][feature] : 1;
    return {
      ...content.features[kind][feature],
      weight,
      times,
      logP: Math.log(p),
      logTimes: Math.log(times),
    };
  });
}

function ranked(rows, lambda) {
  const scores = new Map();
  for (const row of rows) {
    scores.set(row, lambda * row.logP + (1 - lambda) * row.logTimes + (row.weight >= FAINT ? 1e6 : 0));
  }
  return rows.slice().sort((a, b) => scores.get(b) - scores.get(a) || b.weight - a.weight);
}
