"""Two rounds of review in a real browser, as a clinician makes them, and a review settled between two reviewers."""

import json
from dataclasses import replace

import pytest

from helpers.chromium import Opened
from helpers.rounds import NAMES, first_model, first_review, second_model
from phenotaste import report
from phenotaste.review import Review

HOSTILE = '</script><img src=x onerror="window.caught=1">\u202e'
SEEN = HOSTILE.replace("\u202e", "\ufffd")
SIZES = (360, 640, 1024, 1280, 1600)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rounds")


@pytest.fixture(scope="module")
def opened(chromium, folder):
    """Opens a page that `report.write` wrote; at the end no page may have complained or asked for anything."""
    all_opened = []

    def open_page(name, *arguments, **options):
        content = report.write(arguments[0], folder / name, *arguments[1:], **options)
        view = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}
        made = Opened(chromium, (folder / name).as_uri(), **view)
        all_opened.append(made)
        return made, content

    yield open_page
    for made in all_opened:
        made.check()
        made.context.close()


def card(page, number):
    return page.locator(f"#phenotype-{number}")


def press(page, number, word):
    card(page, number).get_by_role("button", name=word, exact=True).click()


def statuses(page):
    found = page.locator(".card").evaluate_all("all => all.map(one => [one.id, one.dataset.status])")
    return {int(name.removeprefix("phenotype-")): status for name, status in found}


def saved(page, path):
    with page.expect_download() as download:
        page.get_by_role("button", name="Save review").click()
    download.value.save_as(path)
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def models():
    return first_model()


@pytest.fixture(scope="module")
def first_round(opened, models, folder):
    """The review that a clinician makes on the page of the first model."""
    cohort, first = models
    page = opened("first.html", first, cohort)[0].page
    page.get_by_label("Reviewer", exact=True).fill("Dr Ada Byron")
    for number, name in NAMES.items():
        page.get_by_label(f"Name of phenotype {number}").fill(name)
    for number, word in ((1, "Accept"), (2, "Reject"), (4, "Accept"), (5, "Accept"), (3, "Merge with…")):
        press(page, number, word)
    card(page, 3).get_by_label("Merge with", exact=True).select_option("1")
    card(page, 4).get_by_label("Comment").fill("Kidneys, too.")
    saved(page, folder / "review.json")
    return folder / "review.json"


@pytest.fixture(scope="module")
def second_round(opened, models, first_round):
    """The opened page of the second model, on which nothing is pressed, its content and the model."""
    cohort, first = models
    second = second_model(first, Review.read(first_round))
    return (*opened("second.html", second, cohort, review=first_round, previous=first), second)


def test_the_second_round_starts_with_what_was_decided(second_round):
    made, content, _ = second_round
    page = made.page
    assert statuses(page) == {1: "accepted", 2: "open", 3: "rejected", 4: "accepted", 5: "open"}
    assert page.locator("#progress").inner_text() == "3 of 5 decided"
    assert page.locator("#storage").inner_text() == "Carried over; not yet saved to a file."
    names = {n: page.get_by_label(f"Name of phenotype {n}").input_value() for n in range(1, 6)}
    assert names == {1: NAMES[1], 2: NAMES[4], 3: NAMES[2], 4: NAMES[5], 5: ""}
    # What changed comes first, the rest follows by number.
    assert page.locator(".card > header .number").all_inner_texts() == ["2", "5", "1", "3", "4"]
    since = page.locator("#since")
    assert [text.split("\n")[0] for text in since.locator(".panel").all_inner_texts()] == [
        "Same (3)",
        "Moved (1)",
        "New (1)",
        "Gone (1)",
    ]
    text = " ".join(since.inner_text().split())
    assert "Dr Ada Byron reviewed model" in text
    assert "3 are the same and already decided, which you can still change; 2 are to be decided." in text
    assert content.changes.gone[0].codes[0] in text
    since.get_by_role("link", name=NAMES[4]).click()
    assert page.evaluate("document.activeElement.id") == "phenotype-2"


def test_each_card_says_what_became_of_it(second_round):
    made, content, _ = second_round
    page = made.page
    said = {n: card(page, n).locator(".since").inner_text() for n in range(1, 6)}
    assert said[1].startswith(
        f"The same as in the last review: phenotypes 1 and 3 merged, accepted as “{NAMES[1]}” by Dr"
    )
    assert said[2].startswith("Moved since the last review (similarity 0.")
    assert "Comment then: Kidneys, too." in said[2]
    assert said[3].startswith(f"Came back unchanged: it was rejected as “{NAMES[2]}” by Dr Ada Byron")
    assert said[5] == "New: nothing in the last review is similar."
    tags = page.locator(".card .tag").all_inner_texts()
    assert tags == ["moved", "new", "same", "came back", "same"]
    change = content.phenotypes[1].change
    shown = card(page, 2).locator(".shifts .name").all_inner_texts()
    assert shown == [code.name for code in (*change.gained, *change.lost)]
    assert card(page, 2).locator(".shifts .weight").first.inner_text().endswith("%")


def test_nothing_overflows_on_a_page_of_the_second_round(second_round):
    page = second_round[0].page
    for width in SIZES:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
        over = """() => [...document.querySelectorAll(".card, .since-lists .panel")].flatMap(box =>
          [...box.querySelectorAll("*")].filter(node => node.checkVisibility() && !node.closest("svg, .printed"))
          .filter(node => node.getBoundingClientRect().right > box.getBoundingClientRect().right)
          .map(node => node.textContent))"""
        assert page.evaluate(over) == [], width
    page.set_viewport_size({"width": 1280, "height": 900})


def test_the_review_of_the_second_round_is_one_of_the_new_model(
    second_round, opened, models, first_round, folder
):
    """Only what changed needs a click; what was carried over keeps its author until it is changed."""
    made, _, second = second_round
    page = made.load()
    page.get_by_label("Reviewer", exact=True).fill("Ben Okafor")
    press(page, 2, "Accept")
    page.get_by_label("Name of phenotype 5").fill("Smokers")
    press(page, 5, "Reject")
    press(page, 4, "Accept")  # undoes what was carried over
    press(page, 4, "Accept")
    review = Review.read(saved(page, folder / "second.json"))
    review.check_model(second)
    assert [(each.name, each.status, each.sources) for each in review.decisions] == [
        (NAMES[1], "accepted", (1,)),
        (NAMES[4], "accepted", ()),
        (NAMES[2], "rejected", (1,)),
        (NAMES[5], "accepted", ()),
        ("Smokers", "rejected", ()),
    ]
    assert review.based_on == (Review.read(first_round).provenance(),)
    assert [review.authors(number)[0].reviewer for number in (1, 2)] == ["Dr Ada Byron", "Ben Okafor"]
    reloaded = made.load()
    assert statuses(reloaded) == statuses(page)
    assert reloaded.locator("#storage").inner_text() == "Saved to a file."
    applied, content = opened("applied.html", second, models[0], review=folder / "second.json")
    assert [p.name for p in content.phenotypes] == [NAMES[1], NAMES[4], NAMES[5]]
    assert [p.authors[0].reviewer for p in content.phenotypes] == ["Dr Ada Byron", "Ben Okafor", "Ben Okafor"]
    assert applied.page.locator("#since").is_hidden()
    assert "Ben Okafor" in applied.page.locator("#model-card").inner_text()


def test_two_reviewers_are_settled_on_one_page(opened, models, folder):
    cohort, first = models
    ada = first_review(first)
    changes = {
        1: {"name": HOSTILE, "comment": HOSTILE},
        4: {"status": "rejected", "comment": HOSTILE},
        5: {"status": "merged", "merge_with": 4, "name": ""},
    }
    ben = [replace(each, **changes.get(each.phenotype, {})) for each in first_review(first).decisions]
    ben[3] = replace(ben[3], status="open")
    ben = replace(ada, reviewer=HOSTILE, decisions=tuple(ben))
    page = opened("both.html", first, cohort, review=[ada, ben])[0].page
    assert page.locator("#since-heading").inner_text() == "What the reviewers decided"
    assert "Cohen's kappa of their verdicts is" in page.locator("#since").inner_text()
    # 1 and 3 have one name and another; 4 and 5 are merged by one of the reviewers only.
    assert page.locator(".card > header .number").all_inner_texts() == ["1", "3", "4", "5", "6", "2"]
    assert statuses(page) == {1: "open", 2: "rejected", 3: "open", 4: "open", 5: "open", 6: "open"}
    opinions = card(page, 5).locator(".opinions li")
    assert "accepted" in opinions.nth(0).inner_text()
    assert "merged with 4" in opinions.nth(1).inner_text()
    for number in (1, 4):
        assert SEEN in card(page, number).locator(".opinions").inner_text()
    press(page, 4, "Reject")
    opinions.nth(1).get_by_role("button").click()
    assert "cannot be merged" in card(page, 5).locator(".note").inner_text()
    press(page, 4, "Reject")
    opinions.nth(1).get_by_role("button").click()
    assert card(page, 5).get_attribute("data-status") == "merged"
    card(page, 1).locator(".opinions li").nth(1).get_by_role("button").click()
    card(page, 3).locator(".opinions li").nth(0).get_by_role("button").click()
    assert page.get_by_label("Name of phenotype 1").input_value() == SEEN
    page.get_by_label("Reviewer", exact=True).fill("Dr Cy")
    review = Review.read(saved(page, folder / "settled.json"))
    assert [(each.status, each.merge_with) for each in review.decisions][:5] == [
        ("accepted", None),
        ("rejected", None),
        ("merged", 1),
        ("open", None),
        ("merged", 4),
    ]
    assert [each.sources for each in review.decisions] == [(), (1, 2), (), (), (), ()]
    assert len(review.based_on) == 2
    assert page.evaluate("window.caught === undefined")
    assert page.locator("img").count() == 0


def test_hostile_names_of_the_last_review_stay_text(opened, models):
    cohort, first = models
    review = first_review(first, HOSTILE)
    named = [replace(each, name=HOSTILE, comment=HOSTILE) for each in review.decisions]
    review = replace(review, decisions=tuple(named))
    second = second_model(first, review)
    page = opened("hostile.html", second, cohort, review=review, previous=first)[0].page
    assert page.evaluate("window.caught === undefined")
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert page.locator("#since").inner_text().count(SEEN) >= 5
    assert SEEN in card(page, 2).locator(".since").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_second_round_on_paper(second_round):
    page = second_round[0].page
    page.emulate_media(media="print")
    try:
        assert page.locator(".since:visible").count() == 5
        assert page.locator("button:visible, textarea:visible, input:visible").count() == 0
        assert card(page, 1).get_by_role("heading", name=f"1 · {NAMES[1]} (accepted)").is_visible()
    finally:
        page.emulate_media(media="screen")
