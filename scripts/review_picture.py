"""Draw docs/review-page.png, a card of the review page in Chromium: python scripts/review_picture.py

The patients are those of `phenotaste demo`. Five phenotypes are selected with ten halves of the patients as evidence;
three of them are named and accepted as a reviewer would, and the card of the last is shown.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from phenotaste import report, selection, simulate
from phenotaste.report.schema import Content

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "review-page.png"
BROWSER = "/usr/bin/chromium"
SIZE = {"width": 1440, "height": 1060}
SPLITS = 5  # each gives two halves
# A word in the heaviest codes by which a phenotype is recognised, and the name that the reviewer gives it.
NAMES = {"diabetes": "Cardiometabolic", "lipid": "Hyperlipidaemia", "dysrhythmias": "Atrial fibrillation"}


def write_page(folder: Path) -> Content:
    cohort, _ = simulate.heart_failure(3000, random_state=0)
    found = selection.select(cohort, 5, n_init=2, halves=SPLITS, out=folder / "selection")
    page = folder / "report.html"
    return report.write(found.best, page, cohort, selection=folder / "selection", title="Heart failure")


def named(content: Content) -> dict[int, str]:
    """The name of each phenotype that is recognised by its heaviest codes, in order of their numbers."""
    found = {}
    for word, name in NAMES.items():
        weights = {
            phenotype.number: sum(
                weight
                for j, weight in phenotype.temporal
                if word in content.features.temporal[j].name.lower()
            )
            for phenotype in content.phenotypes
            if phenotype.number not in found
        }
        found[max(weights, key=lambda number: weights[number])] = name
    return found


def draw(page: Any, names: dict[int, str], picture: Path) -> None:
    page.get_by_label("Reviewer").fill("Dr A. Reviewer")
    for number, name in names.items():
        card = page.locator(f"#phenotype-{number}")
        card.locator("input.title").fill(name)
        card.get_by_role("button", name="Accept").click()
    shown = page.locator(f"#phenotype-{list(names)[-1]}")
    page.evaluate("document.activeElement.blur()")
    top = page.locator(".bar").bounding_box()["height"] + 16
    shown.evaluate("(card, top) => window.scrollTo(0, card.getBoundingClientRect().top + scrollY - top)", top)
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)
    page.screenshot(path=str(picture))


def main(picture: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        content = write_page(Path(folder))
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport=SIZE, reduced_motion="reduce")
        page.goto((Path(folder) / "report.html").as_uri())
        page.wait_for_selector("body[data-ready]")
        draw(page, named(content), picture)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
