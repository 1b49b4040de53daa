"""Three hospitals with a cohort each, and the lists of codes and facts that they agreed on."""

from helpers.hospitals import NAMES, hospitals


def prepare(folder):
    cohorts = dict(zip(NAMES, hospitals(), strict=True))
    for name, cohort in cohorts.items():
        cohort.save(folder / name)
    lists = {"codes.txt": "feature_names", "facts.txt": "static_names"}
    for file, names in lists.items():
        known = sorted({str(name) for cohort in cohorts.values() for name in getattr(cohort, names)})
        (folder / file).write_text("\n".join(known), encoding="utf-8")
