// Finding, sorting and moving among the cards, and the bar with the review: name, progress, save, load, print.

let shown = NUMBERS.slice(); // numbers of the cards to be seen, in their order
const visible = new Set(); // cards on the screen

const ORDERS = {
  number: () => NUMBERS.slice().sort((a, b) => a - b),
  prevalence: () => byNumber((number) => -(cards.get(number).phenotype.prevalence ?? -1)),
  status: () => byNumber((number) => STATUSES.indexOf(decision(number).status)),
  own: () => review.order.filter((number) => NUMBERS.includes(number)),
};

function byNumber(key) {
  return NUMBERS.slice().sort((a, b) => key(a) - key(b) || a - b);
}

function wanted(number) {
  const status = byId("filter").value;
  if (status !== "all" && decision(number).status !== status) return false;
  return view.search.length === 0 || cards.get(number).bars.has() || matches(decision(number).name);
}

// Cards keep their places while decisions are made: one that vanished under the finger could not be undone.
function arrange() {
  const order = ORDERS[byId("order").value]();
  const active = document.activeElement;
  const holder = byId("cards");
  order.forEach((number, i) => {
    if (holder.children[i] !== cards.get(number).element)
      holder.insertBefore(cards.get(number).element, holder.children[i] ?? null);
  });
  if (active !== document.activeElement) active.focus({ preventScroll: true });
  shown = order.filter(wanted);
  order.forEach((number) => {
    cards.get(number).element.hidden = !shown.includes(number);
  });
  document.body.classList.toggle("own-order", byId("order").value === "own");
  fillList();
  sayShown();
}

function sayShown() {
  const some = shown.length < NUMBERS.length;
  const why = view.search.length > 0 ? ` with a code like “${byId("search").value.trim()}”` : "";
  const text =
    shown.length === 0
      ? `No phenotype${why} to show.`
      : some
        ? `${shown.length} of ${NUMBERS.length} shown${why}`
        : `All ${NUMBERS.length} shown${why}`;
  if (byId("showing").textContent !== text) byId("showing").textContent = text;
  byId("refresh").hidden = ORDERS[byId("order").value]().filter(wanted).join() === shown.join();
}

function fillList() {
  byId("list").replaceChildren(
    ...shown.map((number) => {
      const made = decision(number);
      return make(
        "li",
        { "data-status": made.status },
        make(
          "a",
          { href: `#phenotype-${number}`, click: jump },
          make("span", { class: "number" }, String(number)),
          make("span", { class: "name" }, made.name || "not named yet"),
          made.status === "open" ? null : sign(made.status),
          make("span", { class: "unseen" }, ` ${made.status}`),
        ),
      );
    }),
  );
}

function fillFilter() {
  const many = (status) => NUMBERS.filter((number) => decision(number).status === status).length;
  const options = [
    ["all", `all (${NUMBERS.length})`],
    ...STATUSES.map((status) => [status, `${status} (${many(status)})`]),
  ];
  const select = byId("filter");
  const chosen = select.value || "all";
  if (select.children.length === 0) select.append(...options.map(([value]) => make("option", { value })));
  options.forEach(([, text], i) => {
    select.children[i].textContent = text;
  });
  select.value = chosen;
}

// The cards in sight are painted at once, the others one by one when there is time, or when they come into sight.
function paintCards() {
  cards.forEach((card) => card.element.setAttribute("aria-busy", "true"));
  visible.forEach(paintCard);
  clearTimeout(paintCards.later);
  paintCards.later = setTimeout(paintNext, 50);
}

function paintNext() {
  const waiting = [...cards.values()].find(isStale);
  if (!waiting) return;
  paintCard(waiting);
  paintCards.later = setTimeout(paintNext);
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
  told(null);
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

// j and k, unless somebody is writing.
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || shown.length === 0) return;
  if (event.target.closest("input, textarea, select") && event.target.type !== "radio") return;
  const by = { j: 1, k: -1 }[event.key];
  if (!by) return;
  const now = event.target.closest(".card");
  const at = now ? shown.indexOf(Number(now.id.replace("phenotype-", ""))) : nearest(by);
  goTo(shown[Math.max(0, Math.min(shown.length - 1, at + by))]);
}

// Where to count from when no card has the focus: the first card below the top of the window.
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
  byId("done").style.width = `${(100 * done) / NUMBERS.length}%`;
  byId("reviewed-by").textContent = review.reviewer ? `Reviewed by ${review.reviewer}, ${progress}.` : "";
  const nothing = essence(review) === essence(blank());
  byId("kept").textContent = !keeps
    ? "This browser keeps no work here: save before you leave."
    : nothing
      ? "Kept in this browser."
      : unsaved()
        ? "Not yet saved to a file."
        : "Saved to a file.";
  byId("kept").classList.toggle("warn", !keeps);
}
