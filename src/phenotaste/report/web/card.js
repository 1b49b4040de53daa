// One card per phenotype: its definition, its patients, and the reviewer's name, decision and comment.

const cards = new Map(); // number → card

function fact(label, text, share) {
  const bar = make("span", { class: "track", "aria-hidden": "true" }, make("i"));
  bar.firstChild.style.width = `${100 * (share ?? 0)}%`;
  return make(
    "div",
    { class: "fact" },
    make("dt", {}, label),
    make("dd", { class: share === null ? "missing" : "" }, text),
    share === null ? null : bar,
  );
}

// Whether other patients give the same phenotype is known without a cohort, too.
function facts(phenotype) {
  const halves = phenotype.stability?.halves;
  const replication = halves
    ? [fact("Found in", `${halves.reproduced} of ${halves.comparisons} halves of the patients`, halves.share)]
    : [];
  const shown = [...(HAS_PATIENTS ? patientFacts(phenotype) : []), ...replication];
  return shown.length === 0 ? null : make("dl", { class: "facts" }, shown);
}

function patientFacts(phenotype) {
  const { patients, share } = phenotype.leading;
  const leading =
    patients === null && share === null
      ? WITHHELD
      : patients === null
        ? percent(share)
        : `${content.trusted ? "" : "about "}${count(patients)}${share === null ? "" : ` (${percent(share)})`}`;
  return [
    fact(
      "Present in",
      phenotype.prevalence === null ? WITHHELD : `${percent(phenotype.prevalence)} of patients`,
      phenotype.prevalence,
    ),
    fact("Leads in", leading, share),
  ];
}

function arrow(path) {
  return draw(
    "svg",
    { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" },
    draw("path", { d: path }),
  );
}

class Card {
  constructor(phenotype) {
    this.phenotype = phenotype;
    this.number = phenotype.number;
    this.links = []; // to other phenotypes, whose names may change
    this.error = null; // why the last decision was not possible
    this.bars = definition(phenotype);
    this.note = make("p", { class: "note", role: "status" });
    this.mergeTarget = make("p", { class: "printed" }); // on screen the select element shows it
    this.element = make(
      "article",
      {
        class: "card",
        id: `phenotype-${this.number}`,
        tabindex: -1,
        "aria-labelledby": `title-${this.number}`,
      },
      this.makeHeader(),
      this.makeMerge(),
      this.mergeTarget,
      this.note,
      changeBlock(phenotype),
      opinionBlock(phenotype, this),
      facts(phenotype),
      make("div", { class: "body" }, this.bars.element, evidence(phenotype)),
      furtherEvidence(phenotype, this.links),
      this.makeComment(),
    );
  }

  makeHeader() {
    const { number } = this;
    this.heading = make("h3", { id: `title-${number}`, class: "printed" });
    // Of several lines if need be, so that a long name is seen in full; it has no line breaks of its own.
    this.name = make("textarea", {
      class: "title",
      rows: 1,
      maxlength: MAX_LENGTH.name,
      placeholder: "Give this phenotype a name",
      "aria-label": `Name of phenotype ${number}`,
      autocomplete: "off",
      input: () => change(number, { name: truncate(oneLine(this.name.value), MAX_LENGTH.name) }),
      change: () => (this.name.value = decision(number).name),
      keydown: (event) => {
        if (event.key !== "Enter" || event.isComposing) return;
        event.preventDefault();
        this.buttons.accepted.focus();
      },
    });
    const shown = make("span", { class: "number", "aria-hidden": "true" }, String(number));
    return make("header", {}, shown, makeTag(this.phenotype), this.heading, this.name, this.makeButtons(), this.makeMoves());
  }

  makeButtons() {
    const onPress = (status) => () => this.showError(decide(this.number, status));
    const button = (status, text, act) =>
      make(
        "button",
        { type: "button", class: `decision ${status}`, click: act, blur: () => this.showError(null) },
        icon(status),
        make("span", {}, text),
      );
    this.buttons = {
      accepted: button("accepted", "Accept", onPress("accepted")),
      rejected: button("rejected", "Reject", onPress("rejected")),
      merged: button("merged", "Merge with…", () => this.pressMerge()),
    };
    const label = `Decision on phenotype ${this.number}`;
    return make("div", { class: "decide", role: "group", "aria-label": label }, Object.values(this.buttons));
  }

  makeMoves() {
    const move = (by, word, path) => {
      const label = `Move phenotype ${this.number} ${word}`;
      const act = (event) => moveCard(this.number, by, event.currentTarget);
      return make("button", { type: "button", class: "move", "aria-label": label, click: act }, arrow(path));
    };
    return make(
      "span",
      { class: "moves" },
      move(-1, "up", "M3 10 8 5 13 10"),
      move(1, "down", "M3 6 8 11 13 6"),
    );
  }

  makeMerge() {
    const id = `merge-${this.number}`;
    const choose = () => {
      if (this.other.value) change(this.number, { status: "merged", merge_with: Number(this.other.value) });
    };
    this.other = make("select", { id, change: choose });
    this.merge = make(
      "p",
      { class: "merge", hidden: true },
      make("label", { for: id }, "Merge with"),
      this.other,
    );
    return this.merge;
  }

  makeComment() {
    const id = `comment-${this.number}`;
    this.comment = make("textarea", {
      id,
      rows: 2,
      maxlength: MAX_LENGTH.comment,
      placeholder: "What makes you think so? What is missing?",
      input: () => change(this.number, { comment: truncate(sanitise(this.comment.value), MAX_LENGTH.comment) }),
    });
    this.commentPrinted = make("p", { class: "printed words" });
    return make(
      "div",
      { class: "comment" },
      make("label", { for: id }, "Comment"),
      this.comment,
      this.commentPrinted,
    );
  }

  // What a key does on this card; false for any other key.
  press(key) {
    const act = {
      a: () => this.showError(decide(this.number, "accepted")),
      r: () => this.showError(decide(this.number, "rejected")),
      m: () => this.pressMerge(),
      n: () => this.name.focus(),
      c: () => this.comment.focus(),
    }[key];
    if (act) act();
    return Boolean(act);
  }

  showError(message) {
    if (this.error === message) return;
    this.error = message;
    this.updateNote();
  }

  // Opens the choice of a phenotype, or undoes a merge.
  pressMerge() {
    if (decision(this.number).status === "merged") {
      decide(this.number, "merged");
      return;
    }
    this.openMerge(this.merge.hidden);
    if (!this.merge.hidden) this.other.focus();
  }

  openMerge(open) {
    this.merge.hidden = !open;
    this.buttons.merged.setAttribute("aria-expanded", String(open));
    if (!open) return;
    const chosen = decision(this.number).merge_with;
    const options = mergeCandidates(this.number).map((candidate) => [candidate, titleOf(candidate)]);
    this.other.replaceChildren(
      ...[["", "choose a phenotype"], ...options].map(([value, text]) =>
        make("option", { value, selected: value === chosen }, text),
      ),
    );
  }

  update() {
    const { status, name, comment } = decision(this.number);
    if (oneLine(this.name.value) !== name) this.name.value = name;
    if (sanitise(this.comment.value) !== comment) this.comment.value = comment;
    this.heading.textContent = titleOf(this.number) + (status === "open" ? "" : ` (${status})`);
    this.commentPrinted.textContent = comment;
    this.element.dataset.status = status;
    for (const [which, button] of Object.entries(this.buttons)) {
      button.setAttribute("aria-pressed", String(which === status));
    }
    this.openMerge(status === "merged" || (status === "open" && !this.merge.hidden));
    for (const [target, link] of this.links) link.textContent = titleOf(target);
    this.updateNote();
  }

  updateNote() {
    const { status, merge_with: target } = decision(this.number);
    const { merged_from: members } = this.phenotype;
    const merged = mergedInto(this.number).filter((other) => !members.includes(other));
    this.mergeTarget.textContent = status === "merged" ? `Merged with ${titleOf(target)}.` : "";
    const sentences = [
      members.length > 1 ? `Merged from phenotypes ${members.join(", ")} of the model.` : null,
      merged.length > 0 ? `Includes ${merged.map(titleOf).join(", ")}.` : null,
      this.error,
    ];
    const text = sentences.filter((part) => part !== null).join(" ");
    if (this.note.textContent !== text) this.note.textContent = text;
  }
}
