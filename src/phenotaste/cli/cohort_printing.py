"""A built cohort as terminal output and as JSON."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from phenotaste.cli.terminal import console, print_list
from phenotaste.disclosure import printable

if TYPE_CHECKING:
    from phenotaste.build import Built

COUNTS = ("patients", "visits", "events")
# The counts of the data quality that are printed if not zero, and the handling of these events.
PROBLEMS = {
    "events_without_code": ("Events without a code", "dropped"),
    "events_without_date": ("Events without a date", "dropped"),
    "events_of_unknown_patients": ("Events of unlisted patients", "dropped"),
    "duplicate_events": ("Duplicate events", "counted once"),
    "events_before_birth": ("Events before birth", None),
    "events_after_death": ("Events after death", None),
    "events_in_the_future": ("Events in the future", None),
    "measurements_implausible": ("Implausible measurements", "dropped"),
    "measurements_unit_mismatch": ("Measurements in another unit than their range", "not rated"),
    "measurements_without_value": ("Measurements without a number or flag", "not rated"),
    "measurements_without_range": ("Measurements without a reference range", "not rated"),
    "measurement_codes_in_several_units": (
        "Measurement codes in several units",
        "rated in the unit of their range",
    ),
    "visits_without_codes": ("Visits without codes", "excluded"),
    "patients_without_events": ("Patients without events", "excluded"),
}
FILES = {
    "attrition": "attrition.csv",
    "settings": "settings.toml",
    "quality": "quality.json",
    "unmapped": "unmapped.csv",
    "patients": "patients.parquet",
    "windows": "windows.svg",
    "thresholds": "thresholds.csv",
}


def print_built(built: "Built", location: str, out: Path) -> None:
    lines = [line.split(maxsplit=1) for line in str(built.cohort.summary()).splitlines()]
    print_list(f"Cohort of {location}", [(name.capitalize(), text) for name, text in lines])
    if built.warnings:
        print_list("Warnings", [("!", printable(sentence)) for sentence in built.warnings])
    print_attrition(built)
    if problems := quality_lines(built):
        print_list("Data quality", problems)
    if built.notes:
        print_list("Notes", [("-", printable(note)) for note in built.notes])
    print_list(
        "Saved", [(name.capitalize(), str(path)) for name, path in output_files(out).items()], wrap=False
    )


def print_attrition(built: "Built") -> None:
    screen = console()
    screen.print(Text("\nAttrition: remaining after each step", "bold"))
    table = Table(box=SIMPLE_HEAD, pad_edge=True, show_edge=False)
    table.add_column("step", overflow="fold")
    for name in COUNTS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in built.attrition.to_dict("records"):
        table.add_row(Text(row["step"]), *(f"{row[name]:,}" for name in COUNTS))
    screen.print(table)


def quality_lines(built: "Built") -> list[tuple[str, str]]:
    """One line per kind of data problem, with its handling."""
    implausible = "dropped" if built.settings.implausible == "drop" else "kept"
    lines = [
        (name, f"{built.quality[key]:,}, {handling or implausible}")
        for key, (name, handling) in PROBLEMS.items()
        if built.quality.get(key)
    ]
    if len(built.unmapped):
        kept = "kept" if built.settings.groups.unmapped == "keep" else "dropped"
        events = int(built.unmapped["events"].sum())
        listed = f"{len(built.unmapped):,} with {events:,} events, {kept}, listed in {FILES['unmapped']}"
        lines.append(("Codes in no group", listed))
        lines += [
            (
                f"In a group, {kind}",
                f"{counts['events_grouped']:,} of {counts['events']:,} events, "
                f"{counts['codes_grouped']:,} of {counts['codes']:,} codes",
            )
            for kind, counts in built.quality["coverage"].items()
        ]
    return lines


def output_files(out: Path) -> dict[str, Path]:
    files = {name: out / file for name, file in FILES.items()}
    return {"cohort": out} | {name: path for name, path in files.items() if path.exists()}


def as_record(built: "Built", source: str, location: str, out: Path) -> dict[str, Any]:
    return {
        "cohort": str(out),
        "source": source,
        "location": location,
        **built.cohort.summary().as_dict(),
        "attrition": built.attrition.to_dict("records"),
        "quality": built.quality,
        "warnings": list(built.warnings),
        "notes": list(built.notes),
        "files": {name: str(path) for name, path in output_files(out).items()},
    }
