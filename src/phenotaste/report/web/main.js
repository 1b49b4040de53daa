// Builds the page and registers its event handlers.

function onChange(number) {
  if (document.activeElement !== byId("reviewer") || number === null)
    byId("reviewer").value = review.reviewer;
  cards.forEach((card) => card.update());
  fillFilter();
  fillList();
  showCount();
  showProgress();
}

async function openReview(file) {
  const before = review;
  const savedBefore = savedAs;
  try {
    const loaded = await loadFile(file);
    replaceReview(loaded, true);
    arrange();
    const undo = () => {
      review = before;
      savedAs = savedBefore;
      notifyChange(null);
      arrange();
    };
    notice({
      text: `Loaded the review${loaded.reviewer ? ` by ${loaded.reviewer}` : ""}: ${decided()} of ${NUMBERS.length} decided.`,
      button: "Undo",
      run: undo,
    });
  } catch (error) {
    if (!(error instanceof InvalidReview)) throw error;
    notice({ text: `${error.message} Nothing was changed.`, loud: true });
  }
}

function save() {
  if (!review.reviewer.trim()) {
    notice({ text: "Please enter your name first: a review names its reviewer.", loud: true });
    byId("reviewer").focus();
    return;
  }
  saveFile();
  notice({ text: "Saved as review.json in your downloads. Send that file back." });
}

function listen() {
  byId("reviewer").addEventListener("input", (event) => {
    review.reviewer = oneLine(event.target.value);
    notifyChange(undefined);
  });
  byId("save").addEventListener("click", save);
  byId("print").addEventListener("click", () => window.print());
  byId("load").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", (event) => {
    const [file] = event.target.files;
    if (file) openReview(file);
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
    setRelevance(Number(event.target.value));
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

function setRelevance(value) {
  view.lambda = 1 - value / 100;
  const text =
    value === 0 ? "most weighted" : value === 100 ? "most distinctive" : `${value}% towards most distinctive`;
  byId("relevance").setAttribute("aria-valuetext", text);
  paintCards();
}

// The toolbar can wrap or show a message, and sticky elements below it need its height.
function measureBar() {
  const bar = document.querySelector(".bar");
  const measure = () => document.documentElement.style.setProperty("--bar-height", `${bar.offsetHeight}px`);
  new ResizeObserver(measure).observe(bar);
  measure();
}

function listenForDrops() {
  const hasFile = (event) => event.dataTransfer && [...event.dataTransfer.types].includes("Files");
  const show = (visible) => {
    byId("drop").hidden = !visible;
  };
  window.addEventListener("dragover", (event) => {
    if (hasFile(event)) {
      event.preventDefault();
      show(true);
    }
  });
  window.addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) show(false);
  });
  window.addEventListener("drop", (event) => {
    show(false);
    if (!hasFile(event)) return;
    event.preventDefault();
    if (event.dataTransfer.files.length === 1) openReview(event.dataTransfer.files[0]);
    else notice({ text: "Please drop one review file at a time.", loud: true });
  });
}

function start() {
  const message = startReview();
  fillRounds();
  if (ORDERS.own().join() !== ORDERS.number().join()) byId("order").value = "own";
  content.phenotypes.forEach((phenotype) => cards.set(phenotype.number, new Card(phenotype)));
  byId("cards").append(...[...cards.values()].map((card) => card.element));
  fillOverview();
  fillHow();
  fillModelCard();
  fillAudit();
  listeners.push(onChange);
  listeners.forEach((listener) => listener(null));
  setRelevance(0);
  arrange();
  const observer = new IntersectionObserver(
    (entries) =>
      entries.forEach(({ target, isIntersecting }) => {
        const card = cards.get(Number(target.id.replace("phenotype-", "")));
        if (isIntersecting) {
          onScreen.add(card);
          paintCard(card);
        } else onScreen.delete(card);
      }),
    { rootMargin: "300px" },
  );
  cards.forEach((card) => {
    paintCard(card);
    observer.observe(card.element);
  });
  measureBar();
  listen();
  if (message) notice(message);
  document.body.dataset.ready = "yes";
}

start();
