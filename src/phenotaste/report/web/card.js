// One card a phenotype: what it is, who has it, and the reader's name, decision and comment.

const cards = new Map(); // number → card

function fact(label, text, share) {
  const bar = make("span", { class: "rail", "aria-hidden": "true" }, make("i"));
  bar.firstChild.style.width = `${100 * (share ?? 0)}%`;
  return make("div", { class: "fact" }, make("dt", {}, label), make("dd", { class: share === null ? "missing" : "" }, text), share === null ? null : bar);
}

function facts(phenotype) {
  const { patients, share } = phenotype.leading;
  const leading = patients === null && share === null ? FEW : patients === null ? percent(share) : `${count(patients)}${share === null ? "" : ` (${percent(share)})`}`;
  return make("dl", { class: "facts" },
    fact("Present in", phenotype.prevalence === null ? FEW : `${percent(phenotype.prevalence)} of patients`, phenotype.prevalence),
    fact("Leads in", leading, share));
}

function decisionButton(number, status, text, act) {
  return make("button", { type: "button", class: `decision ${status}`, "aria-pressed": "false", click: act }, sign(status), make("span", {}, text));
}

function makeCard(phenotype) {
  const number = phenotype.number;
  const links = []; // to other phenotypes, whose names may change
  const heading = make("h3", { id: `title-${number}`, class: "printed" });
  const name = make("input", { class: "title", maxlength: LONGEST.name, placeholder: "Give this phenotype a name", "aria-label": `Name of phenotype ${number}`, autocomplete: "off", input: () => change(number, { name: oneLine(name.value) }), change: () => { name.value = decision(number).name; } });
  const note = make("p", { class: "note", role: "status" });
  const mergedInto = make("p", { class: "printed" }); // on the screen the choice itself says it
  const comment = make("textarea", { id: `comment-${number}`, rows: 2, maxlength: LONGEST.comment, placeholder: "What makes you think so? What is missing?", input: () => change(number, { comment: plain(comment.value) }) });
  const commentPrinted = make("p", { class: "printed words" });
  const buttons = {
    accepted: decisionButton(number, "accepted", "Accept", () => say(decide(number, "accepted"))),
    rejected: decisionButton(number, "rejected", "Reject", () => say(decide(number, "rejected"))),
    merged: decisionButton(number, "merged", "Merge with…", () => mergePressed()),
  };
  const other = make("select", { id: `merge-${number}`, change: () => { if (other.value) change(number, { status: "merged", merge_with: Number(other.value) }); } });
  const merge = make("p", { class: "merge", hidden: true }, make("label", { for: `merge-${number}` }, "Merge with"), other);
  const move = (by, word, arrow) => make("button", { type: "button", class: "move", "aria-label": `Move phenotype ${number} ${word}`, click: (event) => moveCard(number, by, event.currentTarget) }, draw("svg", { class: "sign", viewBox: "0 0 16 16", "aria-hidden": "true" }, draw("path", { d: arrow })));
  const moves = make("span", { class: "moves" }, move(-1, "up", "M3 10 8 5 13 10"), move(1, "down", "M3 6 8 11 13 6"));
  const bars = definition(phenotype);
  const numberShown = make("span", { class: "number", "aria-hidden": "true" }, String(number));
  let trouble = null;

  function say(sentence) {
    trouble = sentence;
    if (sentence) updateNote();
  }

  function mergePressed() {
    if (decision(number).status === "merged") return decide(number, "merged"); // pressing again takes it back
    merge.hidden = !merge.hidden;
    buttons.merged.setAttribute("aria-expanded", String(!merge.hidden));
    if (merge.hidden) return null;
    fillOthers();
    return other.focus();
  }

  function fillOthers() {
    const chosen = decision(number).merge_with;
    other.replaceChildren(make("option", { value: "" }, "choose a phenotype"), ...partners(number).map((candidate) => make("option", { value: candidate, selected: candidate === chosen }, titleOf(candidate))));
  }

  function updateNote() {
    const made = decision(number);
    const takes = merging(number);
    const said = [];
    mergedInto.textContent = made.status === "merged" ? `Merged with ${titleOf(made.merge_with)}.` : "";
    if (takes.length > 0) said.push(`Takes in ${takes.map(titleOf).join(", ")}.`);
    if (phenotype.merged_from.length > 1) said.push(`Made of phenotypes ${phenotype.merged_from.join(", ")} of the model.`);
    if (trouble) said.push(trouble);
    if (note.textContent !== said.join(" ")) note.textContent = said.join(" ");
  }

  function update() {
    const made = decision(number);
    if (name.value !== made.name && oneLine(name.value) !== made.name) name.value = made.name;
    if (plain(comment.value) !== made.comment) comment.value = made.comment;
    heading.textContent = `${titleOf(number)}${made.status === "open" ? "" : ` (${WORDS[made.status]})`}`;
    commentPrinted.textContent = made.comment;
    element.dataset.status = made.status;
    for (const [status, button] of Object.entries(buttons)) button.setAttribute("aria-pressed", String(made.status === status));
    merge.hidden = made.status !== "merged" && merge.hidden;
    if (made.status === "merged") merge.hidden = false;
    if (made.status === "accepted" || made.status === "rejected") merge.hidden = true;
    buttons.merged.setAttribute("aria-expanded", String(!merge.hidden));
    if (!merge.hidden) fillOthers();
    for (const [target, link] of links) link.textContent = titleOf(target);
    updateNote();
  }

  const element = make("article", { class: "card", id: `phenotype-${number}`, tabindex: -1, "aria-labelledby": `title-${number}` },
    make("header", {}, numberShown, heading, name, make("div", { class: "decide", role: "group", "aria-label": `Decision on phenotype ${number}` }, Object.values(buttons)), moves),
    merge, mergedInto, note,
    PATIENTS_KNOWN ? facts(phenotype) : null,
    make("div", { class: "body" }, bars.element, evidence(phenotype)),
    furtherEvidence(phenotype, links),
    make("div", { class: "comment" }, make("label", { for: `comment-${number}` }, "Comment"), comment, commentPrinted));
  element.querySelectorAll("input.title, button.decision").forEach((control) => control.addEventListener("blur", () => { if (trouble) { trouble = null; updateNote(); } }));
  return { number, phenotype, element, update, paint: bars.paint, has: bars.has, stale: true };
}
