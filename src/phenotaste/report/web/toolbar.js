// Search, sorting and navigation of the cards, and the toolbar: reviewer, progress, messages.

let shown = NUMBERS.slice(); // numbers of the cards that pass the filter, in order
const onScreen = new Set(); // cards

const ORDERS = {
  number: () => NUMBERS.slice().sort((a, b) => a - b),
  prevalence: () => byNumber((number) => -(cards.get(number).phenotype.prevalence ?? -1)),
  status: () => byNumber((number) => STATUSES.indexOf(decision(number).status)),
  attention: () => byNumber(attention),
  own: () => review.order.filter((number) => NUMBERS.includes(number)),
};

function byNumber(key) {
  return NUMBERS.slice().sort((a, b) => key(a) - key(b) || a - b);
}

function passesFilter(number) {
  const status = byId("filter").value;
  if (status !== "all" && decision(number).status !== status) return false;
  return view.search.length === 0 || cards.get(number).bars.has() || matches(decision(number).name);
}

// Called only on request, not on decisions: a decision on a card that then disappeared could not be undone.
function arrange() {
  const order = ORDERS[byId("order").value]();
  const active = document.activeElement;
  const container = byId("cards");
  order.forEach((number, i) => {
    if (container.children[i] !== cards.get(number).element)
      container.insertBefore(cards.get(number).element, container.children[i] ?? null);
  });
  if (active !== document.activeElement) active.focus({ preventScroll: true });
  shown = order.filter(passesFilter);
  order.forEach((number) => {
    cards.get(number).element.hidden = !shown.includes(number);
  });
  document.body.classList.toggle("own-order", byId("order").value === "own");
  fillList();
  showCount();
}

function showCount() {
  const isFiltered = shown.length < NUMBERS.length;
  const reason = view.search.length > 0 ? ` with a code like “${byId("search").value.trim()}”` : "";
  const text =
    shown.length === 0
      ? `No phenotype${reason} to show.`
      : isFiltered
        ? `${shown.length} of ${NUMBERS.length} shown${reason}`
        : `All ${NUMBERS.length} shown${reason}`;
  if (byId("showing").textContent !== text) byId("showing").textContent = text;
  byId("refresh").hidden = ORDERS[byId("order").value]().filter(passesFilter).join() === shown.join();
}

function fillList() {
  byId("list").replaceChildren(
    ...shown.map((number) => {
      const { status, name } = decision(number);
      return make(
        "li",
        { "data-status": status },
        make(
          "a",
          { href: `#phenotype-${number}`, click: jump },
          make("span", { class: "number" }, String(number)),
          make("span", { class: "name" }, name || "not named yet"),
          status === "open" ? null : icon(status),
          make("span", { class: "visually-hidden" }, ` ${status}`),
        ),
      );
    }),
  );
}

function fillFilter() {
  const countOf = (status) => NUMBERS.filter((number) => decision(number).status === status).length;
  const options = [
    ["all", `all (${NUMBERS.length})`],
    ...STATUSES.map((status) => [status, `${status} (${countOf(status)})`]),
  ];
  const select = byId("filter");
  const chosen = select.value || "all";
  if (select.children.length === 0) select.append(...options.map(([value]) => make("option", { value })));
  options.forEach(([, text], i) => {
    select.children[i].textContent = text;
  });
  select.value = chosen;
}

// Cards on screen are painted immediately, the others one by one when idle or when they are scrolled into view.
function paintCards() {
  cards.forEach((card) => card.element.setAttribute("aria-busy", "true"));
  onScreen.forEach(paintCard);
  clearTimeout(paintCards.timer);
  paintCards.timer = setTimeout(paintNext, 50);
}

function paintNext() {
  const next = [...cards.values()].find(isStale);
  if (!next) return;
  paintCard(next);
  paintCards.timer = setTimeout(paintNext);
}

const isStale = (card) => card.element.hasAttribute("aria-busy");

function paintCard(card) {
  if (!isStale(card)) return;
  card.bars.paint();
  card.element.removeAttribute("aria-busy");
}

function moveCard(number, by, button) {
  const at = shown.indexOf(number);
  const neighbour = shown[at + by];
  if (neighbour === undefined) return;
  const order = review.order.filter((other) => other !== number);
  order.splice(order.indexOf(neighbour) + (by > 0 ? 1 : 0), 0, number);
  review.order = order;
  notifyChange(null);
  arrange();
  button.focus({ preventScroll: true });
  cards.get(number).element.scrollIntoView({ block: "nearest" });
}

function jump(event) {
  const number = Number((event.currentTarget.getAttribute("href") ?? "").replace("#phenotype-", ""));
  if (!cards.has(number)) return;
  event.preventDefault();
  if (!shown.includes(number)) showAll();
  goTo(number);
}

function showAll() {
  byId("filter").value = "all";
  byId("search").value = "";
  view.search = [];
  paintCards();
  arrange();
}

function goTo(number) {
  const { element } = cards.get(number);
  element.scrollIntoView({ block: "start" });
  element.focus({ preventScroll: true });
}

// j and k go from card to card, letters decide on the card that has the focus; neither does so in a text field, which
// Escape leaves.
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || shown.length === 0) return;
  const now = event.target.closest(".card");
  if (event.key === "Escape" && now) {
    now.focus({ preventScroll: true });
    return;
  }
  if (event.target.closest("input, textarea, select") && event.target.type !== "radio") return;
  if (now && cards.get(Number(now.id.replace("phenotype-", ""))).press(event.key)) {
    event.preventDefault(); // or the letter would be typed into the field that gets the focus
    return;
  }
  const by = { j: 1, k: -1 }[event.key];
  if (!by) return;
  const at = now ? shown.indexOf(Number(now.id.replace("phenotype-", ""))) : nearest(by);
  goTo(shown[Math.max(0, Math.min(shown.length - 1, at + by))]);
}

// The card to count from if none has the focus: the first one below the top of the window.
function nearest(by) {
  const at = shown.findIndex((number) => cards.get(number).element.getBoundingClientRect().bottom > 160);
  return at < 0
    ? shown.length
    : by > 0 && cards.get(shown[at]).element.getBoundingClientRect().top > 120
      ? at - 1
      : at;
}

function notice({ text, button = null, run = null, loud = false }) {
  byId("message").hidden = false;
  byId("message").classList.toggle("loud", loud);
  byId("message-text").setAttribute("role", loud ? "alert" : "status");
  byId("message-text").textContent = text;
  byId("message-do").hidden = button === null;
  byId("message-do").textContent = button ?? "";
  byId("message-do").onclick = () => {
    byId("message").hidden = true;
    run();
  };
}

function showProgress() {
  const done = decided();
  const progress = `${done} of ${NUMBERS.length} decided`;
  byId("progress").textContent = progress;
  byId("progress-bar").style.width = `${(100 * done) / NUMBERS.length}%`;
  byId("reviewed-by").textContent = review.reviewer ? `Reviewed by ${review.reviewer}, ${progress}.` : "";
  const isBlank = serialise(review) === serialise(blank());
  byId("storage").textContent = !storageWorks
    ? "This browser does not store your work: save before you leave."
    : isBlank
      ? "Stored in this browser."
      : unsaved()
        ? "Not yet saved to a file."
        : content.carried && serialise(review) === startedFrom
          ? "Carried over; not yet saved to a file."
          : "Saved to a file.";
  byId("storage").classList.toggle("warn", !storageWorks);
}
