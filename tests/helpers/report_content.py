"""Simulated contents of review pages: a small one that resembles heart failure, or one of any size."""

import math

import numpy as np

from phenotaste.simulate import paper_phenotypes as names

FINGERPRINT = "5e" * 32
GROUPS = {"Dx": "diagnosis", "Rx": "medication", "Px": "procedure"}


def simulated_content(n_phenotypes=5, n_features=None, seed=0, **changes):
    """A content with all sections. Without `n_features` the features are those of the heart-failure table."""
    rng = np.random.default_rng(seed)
    temporal, V = _temporal(n_phenotypes, n_features, rng)
    static, F = _static(n_phenotypes, rng)
    prevalence = np.round(rng.uniform(0.06, 0.6, n_phenotypes), 3)
    leading = rng.integers(60, 900, n_phenotypes)
    places = rng.uniform(0, 1, (n_phenotypes, 2)).round(3)
    content = {
        "format": 1,
        "version": "0.2.0",
        "title": "Heart failure in primary care",
        "fingerprint": FINGERPRINT,
        "min_cell_size": 11,
        "trusted": False,
        "codes_in": "visits",
        "courses": True,
        "overview": _overview(n_phenotypes, places, prevalence),
        "features": {"temporal": temporal, "static": static},
        "phenotypes": [
            {
                "number": r + 1,
                "name": None,
                "status": "open",
                "merged_from": [],
                "temporal": _weights(V[:, r]),
                "static": _weights(F[:, r]),
                "mass": {"temporal": float(V[:, r].sum()), "static": float(F[:, r].sum())},
                "prevalence": float(prevalence[r]),
                "leading": {
                    "patients": int(leading[r]),
                    "share": round(float(leading[r] / leading.sum()), 3),
                },
                "course": {"visits": _band(rng, 30), "months": _band(rng, 24)},
                "rates": [min(round(fact["rate"] * (0.5 + 0.3 * r), 3), 1.0) for fact in static],
                "typical": _typical(),
                "profile": _profile(rng, static),
                "outcome": _outcome(rng),
                "stability": {
                    "halves": _found(np.random.default_rng(r), 10),
                    "starts": _found(rng),
                    "bootstrap": _found(rng),
                },
                "similar": [
                    {"phenotype": other + 1, "cosine": round(0.6 - 0.12 * i, 2)}
                    for i, other in enumerate([o for o in range(n_phenotypes) if o != r][:3])
                ],
            }
            for r in range(n_phenotypes)
        ],
        "card": CARD,
        "audit": [
            {"where": "Phenotype 2", "what": "odds ratio", "reason": "fewer than 11 patients"},
            {"where": "Cohort", "what": "removed by: at least 5 visits", "reason": "a small count"},
        ],
        "review": None,
    }
    return content | changes


def _temporal(n_phenotypes, n_features, rng):
    if n_features is None:
        known = list(dict.fromkeys(name for column in names.TEMPORAL_WEIGHTS for name in column))
        listed = [*known, "Px_Diagnostic cardiac catheterisation [47.]", "Px_Echocardiogram [193.]"]
        V = rng.gamma(0.3, 0.03, (len(listed), n_phenotypes))
        for r in range(n_phenotypes):
            for name, weight in names.TEMPORAL_WEIGHTS[r % 5].items():
                V[listed.index(name), r] = weight
        V[-2:, -1] = [0.31, 0.17]
    else:
        listed = [
            f"{('Dx', 'Dx', 'Rx', 'Px')[j % 4]}_Condition or treatment number {j} [{j}.]"
            for j in range(n_features)
        ]
        V = rng.gamma(0.25, 0.1, (n_features, n_phenotypes))
    features = [
        {"name": name[3:], "group": GROUPS[name[:2]], "share": round(float(rng.uniform(0.02, 0.7)), 3)}
        for name in listed
    ]
    return features, V / V.max()


def _static(n_phenotypes, rng):
    listed = [
        "Male",
        "Female",
        "Age 80 to 89",
        "Age 60 to 79",
        "White",
        "Current smoker",
        "Severely obese",
        "Never drank",
    ]
    F = rng.gamma(0.8, 0.3, (len(listed), n_phenotypes))
    shares = [round(float(rng.uniform(0.1, 0.6)), 3) for _ in listed]
    facts = zip(listed, shares, strict=True)
    return [
        {"name": name, "share": share, "rate": share, "numeric": False} for name, share in facts
    ], F / F.max()


def _weights(column):
    order = np.argsort(-column, kind="stable")
    return [[int(j), round(float(column[j]), 4)] for j in order if column[j] > 0.0005]


def _band(rng, n):
    x = np.arange(1, n + 1)
    middle = 0.5 + 0.3 * np.sin(x / n * rng.uniform(1, 5)) + rng.normal(0, 0.015, n).cumsum()
    middle = np.maximum(middle, 0.05)
    return {
        "x": x.tolist(),
        "median": middle.round(3).tolist(),
        "low": (middle * 0.6).round(3).tolist(),
        "high": (middle * 1.5).round(3).tolist(),
    }


def _typical():
    t = np.linspace(0, 1, 21)
    shapes = {"early": np.exp(-3 * t), "late": np.exp(3 * t - 3), "steady": 0.6 + 0.05 * np.sin(9 * t)}
    return [{"label": label, "curve": curve.round(3).tolist()} for label, curve in shapes.items()]


def _profile(rng, static):
    rows = [
        {"feature": "Age (years)", "kind": "mean", "leading": 76.2, "rest": 71.4, "effect": 0.52},
        *(
            {
                "feature": feature["name"],
                "kind": "share",
                "leading": round(float(rng.uniform(0.1, 0.7)), 3),
                "rest": round(float(rng.uniform(0.1, 0.7)), 3),
                "effect": round(float(rng.normal(0, 0.5)), 2),
            }
            for feature in static
        ),
    ]
    return sorted(rows, key=lambda row: -abs(row["effect"]))


def _outcome(rng):
    ratio = math.exp(rng.normal(0, 0.5))
    return {
        "name": "readmission",
        "odds_ratio": round(ratio, 2),
        "low": round(ratio / 1.35, 2),
        "high": round(ratio * 1.35, 2),
        "leading": 0.31,
        "rest": 0.24,
    }


def _found(rng, n=20):
    values = np.clip(rng.normal(0.9, 0.06, n), 0, 1).round(3)
    return {
        "median": round(float(np.median(values)), 2),
        "low": round(float(values.min()), 2),
        "high": round(float(values.max()), 2),
        "share": round(float((values > 0.85).mean()), 2),
        "values": values.tolist(),
        "reproduced": int((values > 0.85).sum()),
        "comparisons": n,
    }


def _overview(n_phenotypes, places, prevalence):
    return {
        "figures": [
            ["Patients", "3,000"],
            ["Visits", "61,204"],
            ["Phenotypes", str(n_phenotypes)],
            ["CPI", "0.981"],
            ["RMSE", "0.1204"],
            ["Outcome", "converged"],
        ],
        "cohort": [
            ["Visits per patient", "18 (9 to 31)"],
            ["Follow-up", "22 months (11 to 35)"],
            ["Codes per visit", "4.4"],
        ],
        "attrition": [
            {"step": "All patients", "patients": 5210, "removed": None},
            {"step": "At least five visits", "patients": 3412, "removed": 1798},
            {"step": "Known age and sex", "patients": 3000, "removed": 412},
        ],
        "stability": {
            "text": "Five phenotypes were the most stable choice.",
            "lines": [["Starts", "20"], ["Median similarity", "0.94"]],
        },
        "map": [
            {"x": float(x), "y": float(y), "size": float(size)}
            for (x, y), size in zip(places, prevalence, strict=True)
        ],
        "loss": [],
        "outcome": "converged",
        "notes": [],
    }


CARD = [
    {
        "heading": "Data",
        "text": ["Visits of 3,000 patients of a simulated heart-failure cohort."],
        "lines": [["Source", "simulated"], ["Values", "counts"]],
    },
    {
        "heading": "What it may be used for",
        "text": [
            "Describing groups of codes that come together. Not for diagnosis, nor for treating anybody."
        ],
        "lines": [],
    },
]
