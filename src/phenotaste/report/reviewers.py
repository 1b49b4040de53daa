"""Who decided what: the authors of names and decisions, several reviewers side by side, and the review in the card."""

from collections.abc import Sequence
from dataclasses import replace

from phenotaste.disclosure import printable
from phenotaste.report.schema import Author, CardSection, Lines, Opinion, Phenotype
from phenotaste.review import Provenance, Review
from phenotaste.review.comparison import settled, verdicts_by_phenotype
from phenotaste.review.decisions import STATUSES, one_line

SHORT = 12  # characters of a fingerprint, as at the foot of the page
UNKNOWN = "a reviewer without a name"


def author_of(source: Provenance) -> Author:
    return Author(one_line(source.reviewer) or UNKNOWN, source.date)


def authors_of(review: Review, number: int) -> list[Author]:
    """Who named a phenotype or decided on it; nobody if it is open and has no name, or was not decided yet."""
    decision = review.decisions[number - 1]
    if decision.status == "open" and not decision.name:
        return []
    own = review.provenance()
    return [author_of(source) for source in review.authors(number) if source != own or review.reviewer]


def with_decisions(phenotypes: Sequence[Phenotype], review: Review) -> list[Phenotype]:
    """Names, statuses and authors of a review that the page starts from; a page of an applied one has them already."""
    result = []
    for phenotype in phenotypes:
        decision = review.decisions[phenotype.number - 1]
        name = one_line(decision.name) or None
        authors = authors_of(review, phenotype.number)
        result.append(replace(phenotype, name=name, status=decision.status, authors=authors))
    return result


def with_opinions(phenotypes: Sequence[Phenotype], reviews: Sequence[Review]) -> list[Phenotype]:
    """What each of several reviewers decided, and whether they disagree on a phenotype."""
    agree, verdicts = settled(reviews), [verdicts_by_phenotype(review) for review in reviews]
    result = []
    for r, phenotype in enumerate(phenotypes):
        opinions = []
        for review, of_reviewer in zip(reviews, verdicts, strict=True):
            decision = review.decisions[r]
            others = sorted(of_reviewer[r][1] - {r + 1})
            named = one_line(decision.name)
            made = (named, decision.status, decision.comment, decision.merge_with)
            opinions.append(Opinion(author_of(review.provenance()), *made, others))
        result.append(replace(phenotype, opinions=opinions, disputed=not agree[r]))
    return result


def review_section(review: Review) -> CardSection:
    """The section of the model card on the review that names and decisions are from."""
    counts = {status: sum(each.status == status for each in review.decisions) for status in STATUSES}
    lines: Lines = [("Reviewed by", line_of(review.provenance()))] if review.reviewer else []
    lines += [("Based on the review by", line_of(source)) for source in review.based_on]
    lines.append(("Decisions", ", ".join(f"{count} {status}" for status, count in counts.items() if count)))
    return CardSection("Review", [], lines)


def line_of(source: Provenance) -> str:
    author = author_of(source)
    return printable(
        f"{author.reviewer}, {author.date}, of model {source.model[:SHORT]} (review {source.review[:SHORT]})"
    )
