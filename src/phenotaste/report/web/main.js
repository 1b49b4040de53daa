// Putting the page together, and listening.

function onChange(number) {
  if (document.activeElement !== byId("reviewer") || number === null)
    byId("reviewer").value = review.reviewer;
  cards.forEach((card) => card.update());
  fillFilter();
  fillList();
  sayShown();
  showProgress();
}

async function take(file) {
  const before = review;
  const savedBefore = savedAs;
  try {
    const loaded = await loadFile(file);
    replaceReview(loaded, true);
    arrange();
    const undo = () => {
      review = before;
      savedAs = savedBefore;
      told(null);
      arrange();
    };
    notice({
      text: `Loaded the review${loaded.reviewer ? ` by ${loaded.reviewer}` : ""}: ${decided()} of ${NUMBERS.length} decided.`,
      button: "Undo",
      run: undo,
    });
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    notice({ text: `${error.message} Nothing was changed.`, loud: true });
  }
}

function save() {
  if (!review.reviewer.trim()) {
    notice({ text: "Please write your name first: a review says who made it.", loud: true });
    byId("reviewer").focus();
    return;
  }
  saveFile();
  notice({ text: "Saved as review.json in your downloads. Send that file back." });
}

function listen() {
  byId("reviewer").addEventListener("input", (event) => {
    review.reviewer = oneLine(event.target.value);
    told(undefined);
  });
  byId("save").addEventListener("click", save);
  byId("print").addEventListener("click", () => window.print());
  byId("load").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", (event) => {
    const [file] = event.target.files;
    if (file) take(file);
    event.target.value = "";
  });
  byId("message-close").addEventListener("click", () => {
    byId("message").hidden = true;
  });
  byId("search").addEventListener("input", (event) => {
    view.search = event.target.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    paintCards();
    arrange();
  });
  byId("filter").addEventListener("change", arrange);
  byId("order").addEventListener("change", arrange);
  byId("refresh").addEventListener("click", () => {
    arrange();
    byId("phenotypes").focus({ preventScroll: true });
  });
  byId("relevance").addEventListener("input", (event) => {
    slide(Number(event.target.value));
  });
  document.addEventListener("keydown", onKey);
  window.addEventListener("beforeprint", () => cards.forEach(paintCard));
  window.addEventListener("beforeunload", (event) => {
    if (unsaved()) {
      event.preventDefault();
      event.returnValue = "";
    }
  });
  listenForDrops();
}

function slide(value) {
  view.lambda = 1 - value / 100;
  const word =
    value === 0 ? "most weighted" : value === 100 ? "most distinctive" : `${value}% towards most distinctive`;
  byId("relevance").setAttribute("aria-valuetext", word);
  paintCards();
}

// The bar can wrap or show a message: what sticks below it must know how high it is.
function measureBar() {
  const bar = document.querySelector(".bar");
  const measure = () => document.documentElement.style.setProperty("--bar-height", `${bar.offsetHeight}px`);
  new ResizeObserver(measure).observe(bar);
  measure();
}

function listenForDrops() {
  const holdsFile = (event) => event.dataTransfer && [...event.dataTransfer.types].includes("Files");
  const show = (yes) => {
    byId("drop").hidden = !yes;
  };
  window.addEventListener("dragover", (event) => {
    if (holdsFile(event)) {
      event.preventDefault();
      show(true);
    }
  });
  window.addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) show(false);
  });
  window.addEventListener("drop", (event) => {
    show(false);
    if (!holdsFile(event)) return;
    event.preventDefault();
    if (event.dataTransfer.files.length === 1) take(event.dataTransfer.files[0]);
    else notice({ text: "Please drop one review file at a time.", loud: true });
  });
}

function begin() {
  const remark = startReview();
  if (ORDERS.own().join() !== ORDERS.number().join()) byId("order").value = "own";
  content.phenotypes.forEach((phenotype) => cards.set(phenotype.number, new Card(phenotype)));
  byId("cards").append(...[...cards.values()].map((card) => card.element));
  fillOverview();
  fillHow();
  fillModelCard();
  fillAudit();
  watchers.push(onChange);
  watchers.forEach((watch) => watch(null));
  slide(0);
  arrange();
  const watching = new IntersectionObserver(
    (seen) =>
      seen.forEach(({ target, isIntersecting }) => {
        const card = cards.get(Number(target.id.replace("phenotype-", "")));
        if (isIntersecting) {
          visible.add(card);
          paintCard(card);
        } else visible.delete(card);
      }),
    { rootMargin: "300px" },
  );
  cards.forEach((card) => {
    paintCard(card);
    watching.observe(card.element);
  });
  measureBar();
  listen();
  if (remark) notice(remark);
  document.body.dataset.ready = "yes";
}

begin();
